// The step program: the network's ops recorded once, run for any number of tokens by one call.
//
// Recording happens on one thread, before the first run. Buffers are planned by the recorder; the program owns one
// arena for them, one scratch area shared by the ops (they run one after the other) and one scratch area per worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace localmoe {

struct Run;

// Rows of a recorded value: `width` floats at `offset` of the arena, rows `stride` floats apart.
struct Rows {
  static constexpr ptrdiff_t kLogits = -1;  // as `offset`: the rows are the caller's logits

  ptrdiff_t offset = 0;
  int stride = 0;
  int width = 0;
  bool selected = false;  // one row per selected token instead of one per token

  int count(const Run& run) const;
  float* row(const Run& run, int index) const;
};

// One session's tokens in a run.
struct Segment {
  int first;             // its first token's index in the run
  int count;
  int start;             // tokens in the cache before this run
  const int32_t* table;  // page numbers
};

// cos and sin of every token's rotary angles, made once per run and shared by all layers.
struct RopeTable {
  std::vector<float> inv_freq;
  float scale = 1;
  std::vector<float> cos, sin;  // [tokens][inv_freq.size()]
};

// Routed experts of the layer whose group op runs, where they lie during this run: [first, first + count), or those that
// have a place among `count`.
struct ExpertWindow {
  int first = 0;
  int count = 0;
  std::vector<const uint8_t*> data;  // of each part, `count` at a time: where each expert's bytes begin
  bool overwrites = true;            // the sum of these experts replaces what the rows hold; else it is added
  std::vector<int32_t> places;  // of each of the layer's experts: its number in the window, -1: not of it; or empty
};

// What one run is given, and where its memory lies. It runs the ops [first_op, end_op).
struct Run {
  const Kernels* kernels = nullptr;
  int num_workers = 0;
  const std::vector<int>* worker_nodes = nullptr;
  int num_tokens = 0;
  const int32_t* ids = nullptr;
  std::vector<int32_t> positions;   // [tokens]
  std::vector<int32_t> segment_of;  // [tokens]
  std::vector<Segment> segments;
  std::vector<int32_t> selected;  // token indices whose logits are asked for
  const Flag* cancel = nullptr;  // or null
  const int32_t* forced_experts = nullptr;  // [moe layers][tokens][top k], or null
  float* logits = nullptr;
  int first_op = 0;
  int end_op = -1;  // -1: to the last
  ExpertWindow window;
  std::vector<RopeTable>* ropes = nullptr;
  float* arena = nullptr;
  float* scratch = nullptr;
  float* worker_scratch = nullptr;
  size_t worker_stride = 0;

  // Which of `num_nodes` nodes the worker is on; those on none of them are spread over all.
  int node_of(int worker, int num_nodes) const;
  float* scratch_of(int worker) const { return worker_scratch + worker_stride * static_cast<size_t>(worker); }
};

// One recorded op: some stages of tiles, one after the other unless the op repeats some. Must not throw while it runs.
class Op {
 public:
  virtual ~Op() = default;
  virtual int num_stages() const { return 1; }
  virtual int begin(int stage, Run& run) = 0;
  virtual int after(int stage) { return stage + 1; }  // asked once a stage is over: which comes now; num_stages() for none
  virtual void run_tile(int stage, int tile, int worker, Run& run) = 0;
  virtual size_t scratch_floats(int /*max_tokens*/, const Kernels& /*kernels*/) const { return 0; }
  virtual size_t worker_floats(int /*max_tokens*/, const Kernels& /*kernels*/) const { return 0; }
};

class Program : public Job {
 public:
  Program(int max_tokens, const Kernels& kernels);

  // Recording.
  void append(std::unique_ptr<Op> op);
  int add_rope(std::vector<float> inv_freq, float scale);
  // After the last op. `worker_nodes` has an index into the nodes that the weights lie on for each worker, or -1.
  void plan(size_t arena_floats, int num_workers, std::vector<int> worker_nodes);
  // Its bulk runs go before those of other programs.
  void go_early() { bulk_ = Urgency::early; }

  // One run of some of the ops, or all; false when cancelled. Runs of one program must not overlap. What ops wrote stays
  // in the arena until ops whose buffers take its place run: a network may be run piece by piece.
  bool forward(Pool& pool, bool is_urgent, const Flag* cancel, Run run);

  int begin(int stage) override;
  void run_tile(int stage, int tile, int worker) override;

  int num_ops() const { return static_cast<int>(ops_.size()); }
  int max_tokens() const { return max_tokens_; }
  const Kernels& kernels() const { return kernels_; }
  float progress() const;  // 0 to 1, from any thread
  float* row(const Rows& rows, int index) const;  // in the arena
  float* arena() const { return arena_.data; }
  size_t arena_bytes() const { return arena_.size; }
  size_t nbytes() const { return arena_.size + scratch_.size + worker_.size; }

 private:
  // Page-aligned memory that the kernel gives out when it is first touched.
  struct Memory {
    Memory() = default;
    ~Memory();
    Memory(const Memory&) = delete;
    void allocate(size_t floats);
    float* data = nullptr;
    size_t size = 0;  // bytes
  };

  int max_tokens_;
  const Kernels& kernels_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<RopeTable> ropes_;
  Memory arena_, scratch_, worker_;
  size_t worker_stride_ = 0;
  std::vector<int> worker_nodes_;
  Run run_;
  Urgency bulk_ = Urgency::bulk;
  int stage_ = 0;  // of the op that runs
  std::atomic<int> op_{0};
};

}  // namespace localmoe

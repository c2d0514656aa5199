// The two forms of multi-head latent attention, each a few stages of tiles over the segments that it is given.
#pragma once

#include <vector>

#include "ops.h"

namespace localmoe {

// What both forms work on, and where a head's part of it lies.
struct Attention {
  Rows q;
  LatentPages cache;
  Matrix kv_b;
  MlaShape shape;
  Rows out;

  int width() const { return shape.rank + shape.rope_dim; }
  int head_width() const { return shape.nope_dim + shape.rope_dim; }
  int key_row(int head) const { return head * (shape.nope_dim + shape.v_dim); }
  int value_row(int head) const { return key_row(head) + shape.nope_dim; }
  const float* query(const Run& run, int token, int head) const { return q.row(run, token) + head * head_width(); }
  float* result(const Run& run, int token, int head) const { return out.row(run, token) + head * shape.v_dim; }
  // The cached rows of the page of position `first`, `num` of them as FP32; `page` is room for 64.
  const float* rows(const Run& run, const int32_t* table, int first, int num, float* page) const;
};

constexpr int kAttentionTile = 9'000'000;  // multiply-adds of a tile: about 200 us

// kv_b's key half is folded into the queries, attention runs on the latents themselves, kv_b's value half expands the
// result. A token's cached positions are split into spans with a state each, merged in their order: how many there are
// depends on the run's tokens, not on the workers, so neither does any sum.
class AbsorbedAttention {
 public:
  static constexpr int kMaxRows = 128;  // bounds the scratch

  explicit AbsorbedAttention(const Attention& of) : of_(of) {}

  size_t scratch_floats(int max_tokens, const Kernels& kernels) const;
  size_t worker_floats() const;

  void clear() { tokens_.clear(); }
  bool has_room(int count) const { return static_cast<int>(tokens_.size()) + count <= kMaxRows; }
  void add(const Segment& segment);

  int begin_absorb(const Run& run);  // each returns its number of tiles
  int begin_pack() const;
  int begin_attend() const;
  int begin_expand() const { return head_tiles(); }
  bool next_wave() { return ++wave_ < num_waves_; }  // begin_attend() once more?

  void absorb(Run& run, int tile) const;
  void pack(Run& run, int tile) const;
  void attend(Run& run, int tile, int worker) const;
  void expand(Run& run, int tile, int worker) const;

 private:
  struct Work;  // a tile of attend()

  int num_rows() const { return static_cast<int>(tokens_.size()); }
  int block_heads() const;
  int num_blocks() const;
  int num_strips() const;
  int head_tiles() const;
  size_t row_floats() const;
  size_t state_floats() const;
  float* query(const Run& run, int row, int head) const;
  float* packed(const Run& run, int row, int strip) const;
  float* state(const Run& run, int row, int block, int span) const;
  Work work_of(const Run& run, int tile) const;
  const void* page_after(const Run& run, int tile, const Work& work, int page) const;
  void merge(const Run& run, int row, int head, float* out) const;

  const Attention& of_;
  std::vector<int> tokens_;
  int num_spans_ = 1;
  int wave_pages_ = 1;  // pages of a span that one tile reads
  int num_waves_ = 0;
  int wave_ = 0;
};

// Cached latents are expanded to every head's keys and values, one span of positions after the other, and blocks of
// queries attend to the span. Spends less than the absorbed form per query and key, and more per key.
class ExpandedAttention {
 public:
  explicit ExpandedAttention(const Attention& of) : of_(of) {}

  size_t scratch_floats(int max_tokens, const Kernels& kernels) const;
  size_t worker_floats(const Kernels& kernels) const;

  void clear();
  void add(const Segment& segment) { segments_.push_back(segment); }
  bool done() const { return at_ == segments_.size(); }
  void next_span();

  int begin_pack(const Run& run);  // each returns its number of tiles
  int begin_keys_values() const;
  int begin_queries() const;

  void pack(Run& run, int tile, int worker) const;
  void make_keys_values(Run& run, int tile, int worker) const;
  void attend(Run& run, int tile, int worker) const;

 private:
  int num_cached() const { return segments_[at_].start + segments_[at_].count; }
  int num_keys() const;
  int key_tile() const;
  int query_rows() const;
  int first_query() const;
  int query_blocks() const;
  size_t latent_strip(const Kernels& kernels) const;
  size_t rope_strip() const;
  size_t key_strip() const;
  size_t head_keys() const;
  size_t head_values() const;
  void make_keys(Run& run, int head, int strip, int num, int worker) const;
  void make_values(Run& run, int head, int strip, int num, int worker) const;

  const Attention& of_;
  std::vector<Segment> segments_;
  size_t at_ = 0;  // the segment
  int first_ = 0;  // position of the span's first key
  float* latents_ = nullptr;  // packed strips of 16 cached rows, of the rotated part too
  float* ropes_ = nullptr;
  float* keys_ = nullptr;  // [head], as QueryBlock has them
  float* values_ = nullptr;
  float* softmax_ = nullptr;  // [head][m, l][token of the segment]
};

}  // namespace localmoe

#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <stdexcept>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size)
#define ASAN_UNPOISON_MEMORY_REGION(data, size)
#endif

namespace localmoe {

int Rows::count(const Run& run) const { return selected ? static_cast<int>(run.selected.size()) : run.num_tokens; }

float* Rows::row(const Run& run, int index) const {
  float* base = offset == kLogits ? run.logits : run.arena + offset;
  return base + static_cast<ptrdiff_t>(index) * stride;
}

int Run::node_of(int worker, int num_nodes) const {
  const size_t w = static_cast<size_t>(worker);
  const int known = w < worker_nodes->size() ? (*worker_nodes)[w] : -1;
  return known >= 0 && known < num_nodes ? known : worker % num_nodes;
}

Program::Memory::~Memory() {
  if (data == nullptr) return;
  ASAN_UNPOISON_MEMORY_REGION(data, size);
  munmap(data, size);
}

void Program::Memory::allocate(size_t floats) {
  constexpr size_t kHuge = size_t{2} << 20;
  size = std::max<size_t>(1, (floats * sizeof(float) + kHuge - 1) / kHuge) * kHuge;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, size, MADV_HUGEPAGE);
  data = static_cast<float*>(memory);
  ASAN_POISON_MEMORY_REGION(data + floats, size - floats * sizeof(float));
}

Program::Program(int max_tokens, const Kernels& kernels) : max_tokens_(max_tokens), kernels_(kernels) {}

void Program::append(std::unique_ptr<Op> op) {
  ops_.push_back(std::move(op));
}

int Program::add_rope(std::vector<float> inv_freq, float scale) {
  for (size_t i = 0; i < ropes_.size(); ++i) {
    if (ropes_[i].inv_freq == inv_freq && ropes_[i].scale == scale) return static_cast<int>(i);
  }
  ropes_.push_back({std::move(inv_freq), scale, {}, {}});
  return static_cast<int>(ropes_.size()) - 1;
}

void Program::plan(size_t arena_floats, int num_workers, std::vector<int> worker_nodes) {
  worker_nodes_ = std::move(worker_nodes);
  size_t shared = 0;
  size_t each = 0;
  for (const auto& op : ops_) {
    shared = std::max(shared, op->scratch_floats(max_tokens_, kernels_));
    each = std::max(each, op->worker_floats(max_tokens_, kernels_));
  }
  worker_stride_ = (each + 63) / 64 * 64 + 64;  // a cache line and more apart
  arena_.allocate(arena_floats);
  scratch_.allocate(shared);
  worker_.allocate(worker_stride_ * static_cast<size_t>(num_workers));
}

namespace {

void fill_ropes(std::vector<RopeTable>& ropes, const std::vector<int32_t>& positions) {
  for (RopeTable& rope : ropes) {
    const size_t half = rope.inv_freq.size();
    rope.cos.resize(positions.size() * half);
    rope.sin.resize(positions.size() * half);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < half; ++i) {
        // The angle is rounded to FP32, as the models were trained with it.
        const float angle = static_cast<float>(positions[t]) * rope.inv_freq[i];
        rope.cos[t * half + i] = static_cast<float>(std::cos(static_cast<double>(angle))) * rope.scale;
        rope.sin[t * half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * rope.scale;
      }
    }
  }
}

}  // namespace

bool Program::forward(Pool& pool, bool is_urgent, const Flag* cancel, Run run) {
  run_ = std::move(run);
  if (run_.end_op < 0) run_.end_op = num_ops();
  run_.kernels = &kernels_;
  run_.cancel = cancel;
  run_.num_workers = pool.num_workers();
  run_.worker_nodes = &worker_nodes_;
  run_.ropes = &ropes_;
  run_.arena = arena_.data;
  run_.scratch = scratch_.data;
  run_.worker_scratch = worker_.data;
  run_.worker_stride = worker_stride_;
  run_.positions.resize(static_cast<size_t>(run_.num_tokens));
  run_.segment_of.resize(static_cast<size_t>(run_.num_tokens));
  for (size_t s = 0; s < run_.segments.size(); ++s) {
    const Segment& segment = run_.segments[s];
    for (int i = 0; i < segment.count; ++i) {
      run_.positions[static_cast<size_t>(segment.first + i)] = segment.start + i;
      run_.segment_of[static_cast<size_t>(segment.first + i)] = static_cast<int32_t>(s);
    }
  }
  fill_ropes(ropes_, run_.positions);
  return pool.run(*this, is_urgent ? Urgency::urgent : bulk_, cancel);
}

int Program::begin(int stage) {
  int op = run_.first_op;
  if (stage > 0) {
    op = op_.load(std::memory_order_relaxed);
    stage_ = ops_[static_cast<size_t>(op)]->after(stage_);
    if (stage_ == ops_[static_cast<size_t>(op)]->num_stages()) {
      ++op;
      stage_ = 0;
    }
  } else {
    stage_ = 0;
  }
  op_.store(op, std::memory_order_relaxed);
  if (op == run_.end_op) return kEnd;
  return ops_[static_cast<size_t>(op)]->begin(stage_, run_);
}

void Program::run_tile(int /*stage*/, int tile, int worker) {
  ops_[static_cast<size_t>(op_.load(std::memory_order_relaxed))]->run_tile(stage_, tile, worker, run_);
}

float Program::progress() const {
  return static_cast<float>(op_.load(std::memory_order_relaxed)) / static_cast<float>(std::max<size_t>(1, ops_.size()));
}

float* Program::row(const Rows& rows, int index) const { return arena_.data + rows.offset + static_cast<ptrdiff_t>(index) * rows.stride; }

}  // namespace localmoe

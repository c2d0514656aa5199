// Multi-head latent attention over the paged latent cache.
//
// Sessions with a few new tokens take the absorbed form: kv_b's key half is folded into the query, attention runs on
// the latents themselves, kv_b's value half expands the result. Longer ones take the expanded (flash) form of
// prefill_head, which spends less per token and more per call.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops.h"

namespace localmoe {
namespace {

constexpr int kAbsorbedTokens = 8;  // most new tokens of a session that take the absorbed form
constexpr int kAbsorbedRows = 32;   // most rows of a run that do: bounds the scratch
constexpr int kHeadBlock = 8;       // heads that share one read of the latents

enum Stage { kAbsorb, kAttend, kExpand, kPrefill, kNumStages };

class MlaAttention : public Op {
 public:
  MlaAttention(Rows q, LatentPages cache, const Matrix& kv_b, MlaShape shape, Rows out)
      : q_(q), cache_(cache), kv_b_(kv_b), shape_(shape), out_(out) {}

  int num_stages() const override { return kNumStages; }

  int begin(int stage, Run& run) override {
    const int rows = static_cast<int>(absorbed_.size());
    switch (stage) {
      case kAbsorb:
        split(run);
        return absorbed_.empty() ? 0 : shape_.num_heads;
      case kAttend:
        return rows * ceil_div(shape_.num_heads, kHeadBlock);
      case kExpand:
        return rows == 0 ? 0 : shape_.num_heads;
      default:
        return static_cast<int>(expanded_.size()) * shape_.num_heads;
    }
  }

  void run_tile(int stage, int tile, int worker, Run& run) override {
    switch (stage) {
      case kAbsorb:
        absorb(run, tile);
        break;
      case kAttend:
        attend(run, tile, worker);
        break;
      case kExpand:
        expand(run, tile, worker);
        break;
      default:
        prefill(run, tile, worker);
    }
  }

  size_t scratch_floats(int max_tokens) const override {
    return static_cast<size_t>(std::min(max_tokens, kAbsorbedRows) * shape_.num_heads) * static_cast<size_t>(width() + padded(shape_.rank));
  }

  size_t worker_floats(int max_tokens, const Kernels& kernels) const override {
    const size_t page = static_cast<size_t>(kPage) * static_cast<size_t>(width());
    const size_t state = static_cast<size_t>(kHeadBlock) * static_cast<size_t>(shape_.rank + 2);
    const size_t operand = static_cast<size_t>(kMaxGemvTokens) * static_cast<size_t>(padded(shape_.rank));
    const size_t prefill = kernels.prefill_scratch_floats(max_tokens, shape_.nope_dim, shape_.rope_dim, shape_.v_dim, shape_.rank);
    return std::max({page + state, operand, prefill});
  }

 private:
  int width() const { return shape_.rank + shape_.rope_dim; }
  int q_width() const { return shape_.nope_dim + shape_.rope_dim; }
  int kv_row(int head) const { return head * (shape_.nope_dim + shape_.v_dim); }

  // Absorbed queries, then their weighted latents, both [row][head].
  float* query(const Run& run, int row, int head) const {
    return run.scratch + static_cast<size_t>(row * shape_.num_heads + head) * static_cast<size_t>(width());
  }
  float* latent(const Run& run, int row, int head) const {
    float* base = run.scratch + absorbed_.size() * static_cast<size_t>(shape_.num_heads * width());
    return base + static_cast<size_t>(row * shape_.num_heads + head) * static_cast<size_t>(shape_.rank);
  }

  void split(const Run& run) {
    absorbed_.clear();
    expanded_.clear();
    for (size_t s = 0; s < run.segments.size(); ++s) {
      const Segment& segment = run.segments[s];
      const bool fits = static_cast<int>(absorbed_.size()) + segment.count <= kAbsorbedRows;
      if (segment.count > kAbsorbedTokens || !fits) {
        expanded_.push_back(static_cast<int>(s));
      } else {
        for (int i = 0; i < segment.count; ++i) absorbed_.push_back(segment.first + i);
      }
    }
  }

  void absorb(Run& run, int head) {
    const int rows = static_cast<int>(absorbed_.size());
    for (int first = 0; first < rows; first += kMaxGemvTokens) {
      const int n = std::min(kMaxGemvTokens, rows - first);
      std::array<const float*, kMaxGemvTokens> x{};
      std::array<float*, kMaxGemvTokens> y{};
      for (int i = 0; i < n; ++i) {
        x[static_cast<size_t>(i)] = q_.row(run, absorbed_[static_cast<size_t>(first + i)]) + head * q_width();
        y[static_cast<size_t>(i)] = query(run, first + i, head);
        std::memcpy(y[static_cast<size_t>(i)] + shape_.rank, x[static_cast<size_t>(i)] + shape_.nope_dim,
                    sizeof(float) * static_cast<size_t>(shape_.rope_dim));
      }
      run.kernels->gevm(kv_b_, kv_row(head), kv_row(head) + shape_.nope_dim, x.data(), n, y.data());
    }
  }

  void attend(Run& run, int tile, int worker) {
    const int blocks = ceil_div(shape_.num_heads, kHeadBlock);
    const int row = tile / blocks;
    const int head0 = tile % blocks * kHeadBlock;
    const int heads = std::min(kHeadBlock, shape_.num_heads - head0);
    const int token = absorbed_[static_cast<size_t>(row)];
    const int32_t* table = run.segments[static_cast<size_t>(run.segment_of[static_cast<size_t>(token)])].table;
    const int context = run.positions[static_cast<size_t>(token)] + 1;

    float* page = run.scratch_of(worker);
    float* acc = page + kPage * width();
    AttentionState state{acc + heads * shape_.rank, acc + heads * (shape_.rank + 1), acc};
    std::fill_n(acc, heads * shape_.rank, 0.0F);
    std::fill_n(state.m, heads, -std::numeric_limits<float>::infinity());
    std::fill_n(state.l, heads, 0.0F);
    for (int first = 0; first < context; first += kPage) {
      run.kernels->attend_latent(query(run, row, head0), heads, shape_.rank, shape_.rope_dim, rows_of(run, table, first, context, page),
                                 std::min(kPage, context - first), shape_.softmax_scale, state);
    }
    for (int h = 0; h < heads; ++h) {
      float* out = latent(run, row, head0 + h);
      for (int i = 0; i < shape_.rank; ++i) out[i] = acc[h * shape_.rank + i] / state.l[h];
    }
  }

  const float* rows_of(const Run& run, const int32_t* table, int first, int context, float* page) const {
    const char* rows = cache_.row(table, first);
    if (!cache_.bf16) return reinterpret_cast<const float*>(rows);
    run.kernels->bf16_to_f32(reinterpret_cast<const uint16_t*>(rows), page, std::min(kPage, context - first) * width());
    return page;
  }

  void expand(Run& run, int head, int worker) {
    const int rows = static_cast<int>(absorbed_.size());
    const int row0 = kv_row(head) + shape_.nope_dim;
    for (int first = 0; first < rows; first += kMaxGemvTokens) {
      const int n = std::min(kMaxGemvTokens, rows - first);
      std::array<const float*, kMaxGemvTokens> x{};
      std::array<float*, kMaxGemvTokens> y{};
      for (int i = 0; i < n; ++i) {
        float* operand = run.scratch_of(worker) + i * padded(shape_.rank);
        run.kernels->gemv_prepare(latent(run, first + i, head), shape_.rank, kv_b_.type, operand);
        x[static_cast<size_t>(i)] = operand;
        y[static_cast<size_t>(i)] = out_.row(run, absorbed_[static_cast<size_t>(first + i)]) + head * shape_.v_dim - row0;
      }
      run.kernels->gemv(kv_b_, row0, row0 + shape_.v_dim, x.data(), n, y.data());
    }
  }

  void prefill(Run& run, int tile, int worker) {
    const Segment& segment = run.segments[static_cast<size_t>(expanded_[static_cast<size_t>(tile / shape_.num_heads)])];
    const int head = tile % shape_.num_heads;
    std::vector<const void*> pages;
    for (int first = 0; first < segment.start + segment.count; first += kPage) pages.push_back(cache_.row(segment.table, first));
    PrefillHead job{};
    job.q = q_.row(run, segment.first) + head * q_width();
    job.q_stride = q_.stride;
    job.out = out_.row(run, segment.first) + head * shape_.v_dim;
    job.out_stride = out_.stride;
    job.num_tokens = segment.count;
    job.start = segment.start;
    job.pages = pages.data();
    job.bf16_cache = cache_.bf16;
    job.kv_b = kv_b_;
    job.key_row = kv_row(head);
    job.nope_dim = shape_.nope_dim;
    job.rope_dim = shape_.rope_dim;
    job.v_dim = shape_.v_dim;
    job.rank = shape_.rank;
    job.softmax_scale = shape_.softmax_scale;
    job.scratch = run.scratch_of(worker);
    job.stopped = [](const void* flag) { return flag != nullptr && static_cast<const Flag*>(flag)->is_set(); };
    job.stop_context = run.cancel;
    run.kernels->prefill_head(job);
  }

  Rows q_;
  LatentPages cache_;
  Matrix kv_b_;
  MlaShape shape_;
  Rows out_;
  std::vector<int> absorbed_;  // token indices
  std::vector<int> expanded_;  // segment indices
};

}  // namespace

std::unique_ptr<Op> make_mla_attention(Rows q, LatentPages cache, const Matrix& kv_b, MlaShape shape, Rows out) {
  return std::make_unique<MlaAttention>(q, cache, kv_b, shape, out);
}

}  // namespace localmoe

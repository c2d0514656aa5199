#include <algorithm>
#include <array>
#include <cstring>

#include "attention.h"

namespace localmoe {
namespace {

constexpr int kSpan = 512;  // positions expanded before queries read them: bounds the scratch
constexpr int kSpanStrips = kSpan / kStrip;
constexpr ptrdiff_t kGemmTile = kGemmRows * kStrip;

}  // namespace

size_t ExpandedAttention::latent_strip(const Kernels& kernels) const { return kernels.strip_floats(of_.shape.rank, of_.kv_b.type); }
size_t ExpandedAttention::rope_strip() const { return static_cast<size_t>(padded(of_.shape.rope_dim)) * kStrip; }
size_t ExpandedAttention::key_strip() const { return static_cast<size_t>(of_.head_width()) * kStrip; }
size_t ExpandedAttention::head_keys() const { return kSpanStrips * key_strip(); }
size_t ExpandedAttention::head_values() const {
  return static_cast<size_t>(kSpan) * static_cast<size_t>(ceil_div(of_.shape.v_dim, kStrip) * kStrip);
}

size_t ExpandedAttention::scratch_floats(int max_tokens, const Kernels& kernels) const {
  if (max_tokens <= kMaxGemvTokens) return 0;
  const size_t heads = static_cast<size_t>(of_.shape.num_heads);
  return kSpanStrips * (latent_strip(kernels) + rope_strip()) + heads * (head_keys() + head_values() + 2 * static_cast<size_t>(max_tokens));
}

size_t ExpandedAttention::worker_floats(const Kernels& kernels) const {
  const size_t page = static_cast<size_t>(kPage) * static_cast<size_t>(of_.width());
  const size_t product = kernels.gemm_scratch_floats() + static_cast<size_t>(kGemmTile * ceil_div(key_tile(), kStrip));
  return std::max({page, product, kernels.attend_queries_scratch_floats(of_.head_width(), of_.shape.v_dim)});
}

void ExpandedAttention::clear() {
  segments_.clear();
  at_ = 0;
  first_ = 0;
}

void ExpandedAttention::next_span() {
  first_ += kSpan;
  if (first_ < num_cached()) return;
  first_ = 0;
  ++at_;
}

int ExpandedAttention::num_keys() const { return std::min(kSpan, num_cached() - first_); }

// Keys of an expansion tile: of one head, either its keys or its values.
int ExpandedAttention::key_tile() const {
  const int rows = std::max(of_.shape.nope_dim, of_.shape.v_dim) * of_.shape.rank;
  return std::clamp(kAttentionTile / rows / kStrip * kStrip, kStrip, kSpan);
}

int ExpandedAttention::query_rows() const {
  return std::clamp(kAttentionTile / (kSpan * (of_.head_width() + of_.shape.v_dim)), 1, kQueryRows);
}

// Queries before this one see nothing of the span.
int ExpandedAttention::first_query() const { return std::max(0, first_ - segments_[at_].start); }
int ExpandedAttention::query_blocks() const { return ceil_div(segments_[at_].count - first_query(), query_rows()); }

int ExpandedAttention::begin_pack(const Run& run) {
  latents_ = run.scratch;
  ropes_ = latents_ + kSpanStrips * latent_strip(*run.kernels);
  keys_ = ropes_ + kSpanStrips * rope_strip();
  values_ = keys_ + static_cast<size_t>(of_.shape.num_heads) * head_keys();
  softmax_ = values_ + static_cast<size_t>(of_.shape.num_heads) * head_values();
  return ceil_div(num_keys(), kPage);
}
int ExpandedAttention::begin_keys_values() const { return of_.shape.num_heads * 2 * ceil_div(num_keys(), key_tile()); }
int ExpandedAttention::begin_queries() const { return of_.shape.num_heads * query_blocks(); }

void ExpandedAttention::pack(Run& run, int tile, int worker) const {
  const int num = std::min(kPage, num_keys() - tile * kPage);
  const float* rows = of_.rows(run, segments_[at_].table, first_ + tile * kPage, num, run.scratch_of(worker));
  for (int first = 0; first < num; first += kStrip) {
    std::array<const float*, kStrip> latents{};
    std::array<const float*, kStrip> ropes{};
    for (int i = 0; i < kStrip; ++i) {  // a whole strip: behind the last key it again, which no query sees
      latents[static_cast<size_t>(i)] = rows + std::min(first + i, num - 1) * of_.width();
      ropes[static_cast<size_t>(i)] = latents[static_cast<size_t>(i)] + of_.shape.rank;
    }
    const size_t strip = static_cast<size_t>((tile * kPage + first) / kStrip);
    run.kernels->pack(latents.data(), kStrip, of_.shape.rank, of_.kv_b.type, latents_ + strip * latent_strip(*run.kernels));
    run.kernels->pack(ropes.data(), kStrip, of_.shape.rope_dim, WeightType::f32, ropes_ + strip * rope_strip());
  }
}

void ExpandedAttention::make_keys_values(Run& run, int tile, int worker) const {
  const int tiles = ceil_div(num_keys(), key_tile());
  const int head = tile / tiles / 2;
  const int first = tile % tiles * key_tile();
  const int num = ceil_div(std::min(key_tile(), num_keys() - first), kStrip);
  if (tile / tiles % 2 == 0) {
    make_keys(run, head, first / kStrip, num, worker);
  } else {
    make_values(run, head, first / kStrip, num, worker);
  }
}

// `num` strips from `strip` on: the product as it comes, then the rotated part that all heads share.
void ExpandedAttention::make_keys(Run& run, int head, int strip, int num, int worker) const {
  float* keys = keys_ + static_cast<size_t>(head) * head_keys() + static_cast<size_t>(strip) * key_strip();
  const float* latents = latents_ + static_cast<size_t>(strip) * latent_strip(*run.kernels);
  for (int row = 0; row < of_.shape.nope_dim; row += kGemmRows) {
    const int row0 = of_.key_row(head) + row;
    const int row1 = std::min(row0 + kGemmRows, of_.value_row(head));
    run.kernels->gemm(of_.kv_b, row0, row1, latents, num * kStrip, keys + row * kStrip, static_cast<ptrdiff_t>(key_strip()), run.scratch_of(worker));
  }
  const size_t bytes = sizeof(float) * static_cast<size_t>(of_.shape.rope_dim * kStrip);
  for (int s = 0; s < num; ++s) {
    float* to = keys + static_cast<size_t>(s) * key_strip() + of_.shape.nope_dim * kStrip;
    std::memcpy(to, ropes_ + static_cast<size_t>(strip + s) * rope_strip(), bytes);
  }
}

// The same for values, each 16 x 16 square of the product turned.
void ExpandedAttention::make_values(Run& run, int head, int strip, int num, int worker) const {
  float* values = values_ + static_cast<size_t>(head) * head_values();
  float* product = run.scratch_of(worker) + run.kernels->gemm_scratch_floats();
  const float* latents = latents_ + static_cast<size_t>(strip) * latent_strip(*run.kernels);
  for (int row = 0; row < of_.shape.v_dim; row += kGemmRows) {
    const int rows = std::min(kGemmRows, of_.shape.v_dim - row);
    const int row0 = of_.value_row(head) + row;
    run.kernels->gemm(of_.kv_b, row0, row0 + rows, latents, num * kStrip, product, kGemmTile, run.scratch_of(worker));
    for (int s = 0; s < num; ++s) {
      for (int r = 0; r < rows; r += kStrip) {
        float* square = values + (row + r) * kSpan + (strip + s) * kStrip * kStrip;
        std::array<float*, kStrip> y{};
        for (int i = 0; i < kStrip; ++i) y[static_cast<size_t>(i)] = square + i * kStrip;
        run.kernels->unpack(product + s * kGemmTile + r * kStrip, std::min(kStrip, rows - r), kStrip, y.data(), 0);
      }
    }
  }
}

void ExpandedAttention::attend(Run& run, int tile, int worker) const {
  const Segment& segment = segments_[at_];
  const int blocks = query_blocks();
  const int head = tile / blocks;
  const int block = tile % blocks;
  const int num_queries = segment.count - first_query();
  const int t0 = first_query() + num_queries * block / blocks;
  const int t1 = first_query() + num_queries * (block + 1) / blocks;
  float* softmax = softmax_ + static_cast<size_t>(head) * 2 * static_cast<size_t>(segment.count);
  QueryBlock job{};
  job.q = of_.query(run, segment.first + t0, head);
  job.q_stride = of_.q.stride;
  job.out = of_.result(run, segment.first + t0, head);
  job.out_stride = of_.out.stride;
  job.m = softmax + t0;
  job.l = softmax + segment.count + t0;
  job.num = t1 - t0;
  job.num_done = std::clamp(first_ + kSpan - (segment.start + t0), 0, job.num);
  job.first = first_ == 0;
  job.visible = segment.start + t0 - first_ + 1;
  job.keys = keys_ + static_cast<size_t>(head) * head_keys();
  job.values = values_ + static_cast<size_t>(head) * head_values();
  job.values_stride = kSpan;
  job.num_keys = num_keys();
  job.head = of_.head_width();
  job.v = of_.shape.v_dim;
  job.softmax_scale = of_.shape.softmax_scale;
  job.scratch = run.scratch_of(worker);
  run.kernels->attend_queries(job);
}

}  // namespace localmoe

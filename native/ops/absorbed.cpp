#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention.h"

namespace localmoe {
namespace {

constexpr int kMaxStates = 64;   // of a run, unless it has more tokens and blocks of heads than that
constexpr int kMaxSpans = 32;    // of a token: each one's state must be merged
constexpr int kSpanPages = 2;    // fewest pages of a span
constexpr int kAbsorbRows = 32;  // tokens of an absorb or expand tile

}  // namespace

// Some pages of one span, for one token and block of heads.
struct AbsorbedAttention::Work {
  int row, block, heads;
  const int32_t* table;
  int context;           // positions that the token sees
  int first_page, end_page;
  float* state;
};

int AbsorbedAttention::block_heads() const { return std::min(kHeads, of_.shape.num_heads); }
int AbsorbedAttention::num_blocks() const { return ceil_div(of_.shape.num_heads, kHeads); }
int AbsorbedAttention::num_strips() const { return ceil_div(of_.shape.num_heads, kStrip); }
size_t AbsorbedAttention::row_floats() const { return static_cast<size_t>(of_.shape.num_heads * of_.width()); }
int AbsorbedAttention::head_tiles() const { return of_.shape.num_heads * ceil_div(num_rows(), kAbsorbRows); }

// A state: the block's sums, then m and l of its heads in lanes.
size_t AbsorbedAttention::state_floats() const {
  return static_cast<size_t>(block_heads()) * static_cast<size_t>(of_.shape.rank) + 2 * kHeads;
}

size_t AbsorbedAttention::scratch_floats(int max_tokens, const Kernels& kernels) const {
  const int rows = std::min(max_tokens, kMaxRows);
  return static_cast<size_t>(rows) * (row_floats() + static_cast<size_t>(num_strips()) * kernels.head_strip_floats(of_.width())) +
         static_cast<size_t>(std::max(kMaxStates, rows * num_blocks())) * state_floats();
}

size_t AbsorbedAttention::worker_floats() const {
  const size_t page = static_cast<size_t>(kPage) * static_cast<size_t>(of_.width());
  const size_t operands = static_cast<size_t>(kMaxGemvTokens) * static_cast<size_t>(localmoe::padded(of_.shape.rank));
  return std::max(page, operands + static_cast<size_t>(of_.shape.rank));
}

void AbsorbedAttention::add(const Segment& segment) {
  for (int i = 0; i < segment.count; ++i) tokens_.push_back(segment.first + i);
}

// Absorbed queries, [row][head]; the same packed, [row][strip of 16 heads]; states, [row][block][span].
float* AbsorbedAttention::query(const Run& run, int row, int head) const {
  return run.scratch + static_cast<size_t>(row) * row_floats() + static_cast<size_t>(head * of_.width());
}
float* AbsorbedAttention::packed(const Run& run, int row, int strip) const {
  return query(run, num_rows(), 0) + static_cast<size_t>(row * num_strips() + strip) * run.kernels->head_strip_floats(of_.width());
}
float* AbsorbedAttention::state(const Run& run, int row, int block, int span) const {
  return packed(run, num_rows(), 0) + static_cast<size_t>((row * num_blocks() + block) * num_spans_ + span) * state_floats();
}

int AbsorbedAttention::begin_absorb(const Run& run) {
  wave_ = 0;
  num_waves_ = 0;
  if (tokens_.empty()) return 0;
  int pages = 0;
  for (const int token : tokens_) pages = std::max(pages, run.positions[static_cast<size_t>(token)] / kPage + 1);
  num_spans_ = std::clamp(kMaxStates / (num_rows() * num_blocks()), 1, std::min(kMaxSpans, ceil_div(pages, kSpanPages)));
  const int span_pages = ceil_div(pages, num_spans_);
  const int tile_pages = std::max(1, kAttentionTile / (block_heads() * kPage * (2 * of_.shape.rank + of_.shape.rope_dim)));
  num_waves_ = ceil_div(span_pages, tile_pages);
  wave_pages_ = ceil_div(span_pages, num_waves_);
  return head_tiles();
}

int AbsorbedAttention::begin_pack() const { return num_rows() * num_strips(); }

int AbsorbedAttention::begin_attend() const { return num_rows() * num_blocks() * num_spans_; }

void AbsorbedAttention::absorb(Run& run, int tile) const {
  const int head = tile % of_.shape.num_heads;
  const int row0 = tile / of_.shape.num_heads * kAbsorbRows;
  const int row1 = std::min(num_rows(), row0 + kAbsorbRows);
  for (int row = row0; row < row1; row += kMaxGemvTokens) {
    const int n = std::min(kMaxGemvTokens, row1 - row);
    std::array<const float*, kMaxGemvTokens> x{};
    std::array<float*, kMaxGemvTokens> y{};
    for (int i = 0; i < n; ++i) {
      const float* from = of_.query(run, tokens_[static_cast<size_t>(row + i)], head);
      float* to = query(run, row + i, head);
      std::memcpy(to + of_.shape.rank, from + of_.shape.nope_dim, sizeof(float) * static_cast<size_t>(of_.shape.rope_dim));
      x[static_cast<size_t>(i)] = from;
      y[static_cast<size_t>(i)] = to;
    }
    run.kernels->gevm(of_.kv_b, of_.key_row(head), of_.value_row(head), x.data(), n, y.data());
  }
}

void AbsorbedAttention::pack(Run& run, int tile) const {
  const int row = tile / num_strips();
  const int strip = tile % num_strips();
  const int num = std::min(kStrip, of_.shape.num_heads - strip * kStrip);
  std::array<const float*, kStrip> heads{};
  for (int h = 0; h < num; ++h) heads[static_cast<size_t>(h)] = query(run, row, strip * kStrip + h);
  run.kernels->pack_heads(heads.data(), num, of_.width(), of_.cache.bf16, packed(run, row, strip));
}

// Neighbours in time read the same pages.
AbsorbedAttention::Work AbsorbedAttention::work_of(const Run& run, int tile) const {
  Work work{};
  work.block = tile % num_blocks();
  work.row = tile / num_blocks() % num_rows();
  const int span = tile / num_blocks() / num_rows();
  const size_t token = static_cast<size_t>(tokens_[static_cast<size_t>(work.row)]);
  work.heads = std::min(kHeads, of_.shape.num_heads - work.block * kHeads);
  work.table = run.segments[static_cast<size_t>(run.segment_of[token])].table;
  work.context = run.positions[token] + 1;
  const int pages = ceil_div(work.context, kPage);
  const int span_pages = ceil_div(pages, num_spans_);
  work.first_page = span * span_pages + wave_ * wave_pages_;
  work.end_page = std::min({pages, (span + 1) * span_pages, work.first_page + wave_pages_});
  work.state = state(run, work.row, work.block, span);
  return work;
}

// What is read after `page`: another page of this tile, or the first one of the tile that this worker probably takes next.
const void* AbsorbedAttention::page_after(const Run& run, int tile, const Work& work, int page) const {
  if (page + 1 < work.end_page) return of_.cache.row(work.table, (page + 1) * kPage);
  if (tile + run.num_workers >= begin_attend()) return nullptr;
  const Work next = work_of(run, tile + run.num_workers);
  return next.first_page < next.end_page ? of_.cache.row(next.table, next.first_page * kPage) : nullptr;
}

void AbsorbedAttention::attend(Run& run, int tile, int worker) const {
  const Work work = work_of(run, tile);
  const MlaShape& shape = of_.shape;
  float* m = work.state + block_heads() * shape.rank;
  float* l = m + kHeads;
  if (wave_ == 0) {
    std::memset(work.state, 0, sizeof(float) * state_floats());
    std::fill_n(m, kHeads, -std::numeric_limits<float>::infinity());
  }
  const float* queries = packed(run, work.row, work.block * (kHeads / kStrip));
  const auto page_bytes = static_cast<ptrdiff_t>(of_.cache.row_bytes()) * kPage;
  for (int page = work.first_page; page < work.end_page; ++page) {
    const int num = std::min(kPage, work.context - page * kPage);
    run.kernels->attend_latent({queries, work.heads, shape.rank, shape.rope_dim, of_.cache.row(work.table, page * kPage), of_.cache.bf16, num,
                                shape.softmax_scale, {m, l, work.state}, page_after(run, tile, work, page), page_bytes, run.scratch_of(worker)});
  }
}

// A head's weighted latents over all spans.
void AbsorbedAttention::merge(const Run& run, int row, int head, float* out) const {
  const int rank = of_.shape.rank;
  const int h = head % kHeads;
  const auto m_of = [&](int span) { return state(run, row, head / kHeads, span) + block_heads() * rank + h; };
  float m = -std::numeric_limits<float>::infinity();
  for (int span = 0; span < num_spans_; ++span) m = std::max(m, *m_of(span));
  float l = 0;
  for (int span = 0; span < num_spans_; ++span) l += std::exp(*m_of(span) - m) * m_of(span)[kHeads];
  std::memset(out, 0, sizeof(float) * static_cast<size_t>(rank));
  for (int span = 0; span < num_spans_; ++span) {
    const float* sums = state(run, row, head / kHeads, span) + h * rank;
    run.kernels->add_scaled(out, sums, std::exp(*m_of(span) - m) / l, rank);
  }
}

void AbsorbedAttention::expand(Run& run, int tile, int worker) const {
  const int head = tile % of_.shape.num_heads;
  const int row0 = tile / of_.shape.num_heads * kAbsorbRows;
  const int row1 = std::min(num_rows(), row0 + kAbsorbRows);
  float* latent = run.scratch_of(worker);
  float* operands = latent + of_.shape.rank;
  for (int row = row0; row < row1; row += kMaxGemvTokens) {
    const int n = std::min(kMaxGemvTokens, row1 - row);
    std::array<const float*, kMaxGemvTokens> x{};
    std::array<float*, kMaxGemvTokens> y{};
    for (int i = 0; i < n; ++i) {
      float* operand = operands + i * localmoe::padded(of_.shape.rank);
      merge(run, row + i, head, latent);
      run.kernels->gemv_prepare(latent, of_.shape.rank, of_.kv_b.type, operand);
      x[static_cast<size_t>(i)] = operand;
      y[static_cast<size_t>(i)] = of_.result(run, tokens_[static_cast<size_t>(row + i)], head) - of_.value_row(head);
    }
    run.kernels->gemv(of_.kv_b, of_.value_row(head), of_.value_row(head) + of_.shape.v_dim, x.data(), n, y.data());
  }
}

}  // namespace localmoe

// The CPU dialect's ops. Each constructor takes what was recorded; see localmoe/kernels/ops.py for what they compute.
#pragma once

#include <memory>
#include <vector>

#include "../program.h"

namespace localmoe {

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Weights that a GEMV tile reads: about 100 us at 10 GB/s. gemv walks a tile as four streams, which wants long ones.
constexpr int kTileBytes = 1 << 20;
// Rows of a GEMV tile: kTileBytes of weights, at least four tiles a worker, a multiple of `step`.
int gemv_tile_rows(const Matrix& w, int num_workers, int step);
// Strips of a GEMM tile: enough tokens to pay for decoding the weights, few enough to stay near 200 us.
int gemm_tile_strips(const Matrix& w);

struct MlaShape {
  int num_heads, nope_dim, rope_dim, v_dim, rank;
  float softmax_scale;
};

struct LatentPages {
  void* data;  // [pages][64][rank + rope_dim], float or BF16
  bool bf16;
  int width;

  size_t row_bytes() const { return static_cast<size_t>(width) * (bf16 ? 2 : 4); }
  char* row(const int32_t* table, int position) const;
};

struct RouterShape {
  int num_experts, top_k, num_groups, top_groups;
  bool sigmoid, group_top2, normalize;
  float scale;
  const float* bias;  // [experts] or null
};

// Chosen experts of one layer: ids [max tokens][K] outlive the run, so that they can be shown.
struct RoutingRows {
  int32_t* ids;
  int layer;  // counted over the layers with experts
  int top_k;
  Rows weights;
};

// A row range of one of an expert's matrices, within the expert's bytes.
struct ExpertMatrix {
  size_t offset;
  size_t scale_offset;
  int first_row;  // in the whole matrix
  Matrix shape;   // data and scale unset

  Matrix at(const uint8_t* expert) const;  // of the expert whose bytes begin there
};

// The rows of all experts that lie together, on one NUMA node: expert e's bytes begin at data + e * stride.
struct ExpertPart {
  const uint8_t* data;
  size_t stride;
  int num_experts;
  ExpertMatrix gate, up, down;

  Matrix at(const ExpertMatrix& m, int expert) const;
};

constexpr int kPartRows = 64;  // parts begin at multiples of it: what gemv_prepare writes in pieces

std::unique_ptr<Op> make_embedding(const Matrix& table, Rows out);
std::unique_ptr<Op> make_rms_norm(Rows x, const float* weight, float eps, Rows out);
std::unique_ptr<Op> make_add(Rows x, Rows y, Rows out);
std::unique_ptr<Op> make_silu_mul(Rows gate, Rows up, Rows out);
std::unique_ptr<Op> make_rope(Rows x, int table, bool interleaved, int head_dim, int rope_dim);
std::unique_ptr<Op> make_widen(Rows x, Rows out);  // x: BF16, two in the place of a float
std::unique_ptr<Op> make_select(Rows x, Rows out);
std::unique_ptr<Op> make_append_latent(LatentPages cache, Rows latent, Rows key);
std::unique_ptr<Op> make_linear(Rows x, const Matrix& w, Rows out);
std::unique_ptr<Op> make_mla_attention(Rows q, LatentPages cache, const Matrix& kv_b, MlaShape shape, Rows out);
std::unique_ptr<Op> make_route(Rows logits, RouterShape router, RoutingRows out);
std::unique_ptr<Op> make_experts(Rows x, RoutingRows routing, std::vector<ExpertPart> parts, Rows out);
// The same for a range of experts at a time, which each run's window names; the parts' `data` is unused.
std::unique_ptr<Op> make_expert_group(Rows x, RoutingRows routing, std::vector<ExpertPart> parts, Rows out);

}  // namespace localmoe

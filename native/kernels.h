// The kernels of one instruction-set target, as a table of function pointers.
//
// kernels/*-inl.h is compiled once per target (targets/*.cpp, each in an anonymous namespace, no STL, no
// exceptions); baseline code only calls through the table, so no wide instruction leaks into it.
//
// Terms: a Matrix is row-major as the checkpoint has it, y[t][row] = sum_k x[t][k] * w[row][k].
// FP8 is E4M3 with one FP32 scale per 128 x 128 block, multiplied. All 256 codes decode exactly except that
// the two NaN codes (rejected at load) give an arbitrary finite value. Accumulation is FP32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace localmoe {

enum class WeightType : uint8_t { fp8, bf16, f32 };

struct Matrix {
  const void* data = nullptr;      // [rows][cols], contiguous, any alignment
  const float* scale = nullptr;    // [ceil((scale_shift + rows) / 128)][ceil(cols / 128)], FP8 only
  int rows = 0;
  int cols = 0;
  WeightType type = WeightType::fp8;
  int scale_shift = 0;             // rows of the first scale block that lie before row 0: of a part of a larger matrix
};

constexpr int kBlock = 128;        // rows and columns that share a scale
constexpr int kMaxGemvTokens = 8;  // more tokens take the GEMM path
constexpr int kStrip = 16;         // tokens side by side in a packed GEMM operand
constexpr int kGemmRows = 48;      // most rows in one gemm() call
constexpr int kPage = 64;          // tokens in a page of the latent cache

constexpr int padded(int cols) { return (cols + 31) / 32 * 32; }

// Online softmax of some heads over the keys seen so far; the caller sets m = -inf, l = 0, acc = 0.
struct AttentionState {
  float* m;    // [heads] largest score
  float* l;    // [heads] sum of exp(score - m)
  float* acc;  // [heads][rank] weighted sum of latents, not yet divided by l
};

// One head of one session's prefill: new tokens attend to all cached tokens up to their own position.
struct PrefillHead {
  const float* q;           // [num_tokens] rows at stride q_stride: nope_dim, then rope_dim rotated elements of this head
  ptrdiff_t q_stride;       // floats
  float* out;               // [num_tokens] rows at stride out_stride: v_dim elements of this head
  ptrdiff_t out_stride;     // floats
  int num_tokens;
  int start;                // position of the first new token; start + num_tokens tokens are cached
  const void* const* pages; // page i holds tokens 64 i .. 64 i + 63, rows of rank + rope_dim
  bool bf16_cache;
  Matrix kv_b;              // whole matrix; this head's key rows start at key_row, its value rows at key_row + nope_dim
  int key_row;
  int nope_dim, rope_dim, v_dim, rank;
  float softmax_scale;
  float* scratch;           // prefill_scratch_floats() floats
  bool (*stopped)(const void* context);  // asked every few milliseconds; once it says yes, `out` stays undefined
  const void* stop_context;
};

// What a target's decoded FP8 values have to be multiplied by: single ones (`value`), those of a group by way of the
// activations (`operand`) and the sums (`sum`).
struct Fp8Units {
  float value, operand, sum;
};

struct Kernels {
  const char* name;

  // Row-wise, n elements. In and out may be the same.
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int n);
  void (*add)(const float* x, const float* y, float* out, int n);
  void (*add_scaled)(float* y, const float* x, float a, int n);  // y += a x
  void (*silu_mul)(const float* gate, const float* up, float* out, int n);
  void (*bf16_to_f32)(const uint16_t* x, float* out, int n);
  void (*f32_to_bf16)(const float* x, uint16_t* out, int n);  // round to nearest even

  // GEMV for 1..8 tokens. gemv_prepare fills the room of padded(n) floats: x in the form in which gemv reads it, zeros
  // behind. It works on pieces too: preparing columns [a, b) with a a multiple of 32 writes out + a only.
  void (*gemv_prepare)(const float* x, int n, WeightType type, float* out);
  // y[t][row] for row in [row0, row1): weights decoded once for all tokens. x[t] as gemv_prepare left it.
  void (*gemv)(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y);

  // y[t][col] = sum over row in [row0, row1) of x[t][row - row0] * w[row][col], for 1..8 tokens; overwrites y. x as it is.
  void (*gevm)(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y);

  // GEMM. pack writes [padded(cols)][16]: 1..16 token rows side by side, zeros for missing tokens and padding.
  void (*pack)(const float* const* x, int num_tokens, int cols, float* out);
  // out[strip][row - row0][16] for row in [row0, row1), at most 48 rows, over the packed strips of num_tokens tokens,
  // laid one after the other (padded(cols) * 16 floats each). out's strips are out_stride floats apart; of the last
  // one only its tokens' places, or half of the strip, are sure to be written. Weights are decoded panel by panel into
  // scratch (gemm_scratch_floats() floats).
  void (*gemm)(const Matrix& w, int row0, int row1, const float* packed, int num_tokens, float* out,
               ptrdiff_t out_stride, float* scratch);
  // The same rows of two matrices of one type and shape, at most 24: out[strip] has the first's, then the second's.
  void (*gemm_pair)(const Matrix& first, const Matrix& second, int row0, int row1, const float* packed, int num_tokens,
                    float* out, ptrdiff_t out_stride, float* scratch);
  // y[t][col0 + r] = c[r][t] for r < rows, t < num_tokens (<= 16).
  void (*unpack)(const float* c, int rows, int num_tokens, float* const* y, int col0);
  size_t (*gemm_scratch_floats)();

  // Decode attention: `heads` (1..8) queries q[heads][rank + rope] against `num` (<= 64) cached rows; updates the state.
  void (*attend_latent)(const float* q, int heads, int rank, int rope, const float* rows, int num, float softmax_scale,
                        AttentionState state);

  void (*prefill_head)(const PrefillHead& job);
  size_t (*prefill_scratch_floats)(int num_tokens, int nope_dim, int rope_dim, int v_dim, int rank);
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx2ZenKernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;

}  // namespace localmoe

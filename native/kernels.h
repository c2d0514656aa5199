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

// Small functions of kernels become part of their callers, whatever an optimiser thinks of it.
#ifndef KERNEL_INLINED
#define KERNEL_INLINED __attribute__((always_inline))
#endif
#define KERNEL_INLINE inline KERNEL_INLINED

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
constexpr int kMaxGemvTokens = 8;  // most tokens in a gemv() call
constexpr int kStrip = 16;         // tokens side by side in a packed GEMM operand
constexpr int kGemmRows = 48;      // most rows in one gemm() call
constexpr int kPage = 64;          // tokens in a page of the latent cache
constexpr int kHeads = 32;         // most heads in one attend_latent() call
constexpr int kQueryRows = 48;     // most queries in one attend_queries() call

constexpr int padded(int cols) { return (cols + 63) / 64 * 64; }

// Online softmax of some heads over the keys seen so far; the caller sets m = -inf, l = 0, acc = 0.
struct AttentionState {
  float* m;    // [heads in whole strips] largest score
  float* l;    // as m: sum of exp(score - m)
  float* acc;  // [heads][rank] weighted sum of latents, not yet divided by l
};

// Some heads of one token against a page of cached rows.
struct LatentBlock {
  const float* q;     // strips of 16 heads as pack_heads leaves them
  int heads;          // 1..32
  int rank, rope;
  const void* rows;   // [64][rank + rope], FP32 or BF16
  bool bf16;
  int num;            // 1..64: the first so many count
  float softmax_scale;
  AttentionState state;
  const void* next;   // what is read next, to come closer meanwhile
  ptrdiff_t next_bytes;
  float* scratch;     // [64][rank + rope]
};

// A block of one head's queries against a span of keys and values. Query i sees the span's first visible + i keys.
struct QueryBlock {
  const float* q;            // [num] rows at q_stride
  ptrdiff_t q_stride;        // floats
  float* out;                // [num] rows of v at out_stride: sums so far, divided by l once a query is done
  ptrdiff_t out_stride;      // floats
  float* m;                  // [num], as in AttentionState
  float* l;                  // [num]
  int num;                   // 1..48
  int num_done;              // the first so many queries see no key after this span
  bool first;                // no span came before: m, l and out are unset
  int visible;               // may be <= 0: the first queries see none of this span
  const float* keys;         // strips of [head][16 keys]
  const float* values;       // strips of [values_stride keys][16]
  ptrdiff_t values_stride;
  int num_keys;
  int head, v;               // elements of a key, of a value
  float softmax_scale;
  float* scratch;            // attend_queries_scratch_floats() floats
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
  // behind. It works on pieces too: preparing columns [a, b) with a a multiple of 64 writes out + a only.
  void (*gemv_prepare)(const float* x, int n, WeightType type, float* out);
  // y[t][row] for row in [row0, row1): weights decoded once for all tokens. x[t] as gemv_prepare left it.
  void (*gemv)(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y);

  // y[t][col] = sum over row in [row0, row1) of x[t][row - row0] * w[row][col], for 1..8 tokens; overwrites y. x as it is.
  void (*gevm)(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y);

  // Most tokens, up to kMaxGemvTokens, for which gemv is not slower than gemm.
  int (*gemv_tokens)(WeightType type);
  // Fewest rows of each matrix with which gemm_pair is as fast as it can be, at most 24.
  int (*pair_rows)(WeightType type);

  // GEMM. pack writes a strip: 1..16 token rows side by side, in the room of strip_floats() floats and in the form in which
  // gemm reads them for weights of `type`; for f32 [padded(cols)][16]. Zeros for missing tokens and padding.
  size_t (*strip_floats)(int cols, WeightType type);
  // Strips that stay in the caches of this target's cores while many rows of weights are multiplied by them; at least 3.
  int (*strips_kept)(int cols, WeightType type);
  void (*pack)(const float* const* x, int num_tokens, int cols, WeightType type, float* out);
  // Columns [row0, row0 + rows) of such a strip of `cols` columns, from a product as gemm leaves it, c[rows][16]. Whoever has
  // the last of them adds the padding.
  void (*pack_product)(const float* c, int rows, int row0, int num_tokens, int cols, WeightType type, float* out);
  // out[strip][row - row0][16] for row in [row0, row1), at most 48 rows, over the packed strips of num_tokens tokens,
  // laid one after the other (strip_floats() each): whole ones, and a last one packed for the tokens that are left. out's
  // strips are out_stride floats apart; of the last one only its tokens' places, or half of the strip, are sure to be
  // written. Weights are decoded panel by panel into scratch (gemm_scratch_floats() floats).
  void (*gemm)(const Matrix& w, int row0, int row1, const float* packed, int num_tokens, float* out,
               ptrdiff_t out_stride, float* scratch);
  // The same rows of two matrices of one type and shape, at most 24: out[strip] has the first's, then the second's.
  void (*gemm_pair)(const Matrix& first, const Matrix& second, int row0, int row1, const float* packed, int num_tokens,
                    float* out, ptrdiff_t out_stride, float* scratch);
  // y[t][col0 + r] = c[r][t] for r < rows, t < num_tokens (<= 16).
  void (*unpack)(const float* c, int rows, int num_tokens, float* const* y, int col0);
  size_t (*gemm_scratch_floats)();

  // Decode attention. pack_heads writes a strip: the queries of 1..16 heads side by side, in the room of
  // head_strip_floats() floats, for a cache in BF16 or FP32. attend_latent updates the state.
  size_t (*head_strip_floats)(int width);
  void (*pack_heads)(const float* const* q, int num_heads, int width, bool bf16, float* out);
  void (*attend_latent)(const LatentBlock& job);

  // Prefill attention; updates m, l and out.
  void (*attend_queries)(const QueryBlock& job);
  size_t (*attend_queries_scratch_floats)(int head, int v);
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx2ZenKernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512ZenKernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAmxBf16Kernels;

}  // namespace localmoe

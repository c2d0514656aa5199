// The avx512_zen target: the kernels for AVX-512 on AMD cores, compiled once more in a namespace of their own.
#include "../kernels.h"
#include "../measure.h"

#include <immintrin.h>

namespace localmoe {
namespace {

#include "../kernels/vec_avx512-inl.h"
// After the vectors: all else is written against them.
#include "../kernels/rows-inl.h"
#include "../kernels/weights-inl.h"
constexpr bool kDenormalsCost = false;
#include "../kernels/gemv_shift-inl.h"
#include "../kernels/ahead_l2-inl.h"
#include "../kernels/gemv-inl.h"
#include "../kernels/gevm-inl.h"
#include "../kernels/gemm_shift-inl.h"
#include "../kernels/gemm-inl.h"
#include "../kernels/latents-inl.h"
#include "../kernels/attend-inl.h"
#include "../kernels/prefill-inl.h"
#include "../kernels/table-inl.h"
#include "../kernels/measure-inl.h"

}  // namespace

extern const Kernels kAvx512ZenKernels = make_table("avx512_zen");
extern const Measures kAvx512ZenMeasures = make_measures();

}  // namespace localmoe

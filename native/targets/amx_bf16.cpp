// The amx_bf16 target: the kernels, compiled once more in a namespace of their own.
#include "../kernels.h"
#include "../measure.h"

#include <immintrin.h>

namespace localmoe {
namespace {

#include "../kernels/vec_avx512-inl.h"
// After the vectors: all else is written against them.
#include "../kernels/rows-inl.h"
#include "../kernels/weights-inl.h"
constexpr bool kDenormalsCost = true;
#include "../kernels/gemv_shift-inl.h"
#include "../kernels/tiles-inl.h"
#include "../kernels/ahead_l1-inl.h"
#include "../kernels/gemv-inl.h"
#include "../kernels/gevm-inl.h"
#include "../kernels/gemm_amx-inl.h"
#include "../kernels/gemm-inl.h"
#include "../kernels/latents-inl.h"
#include "../kernels/attend_amx-inl.h"
#include "../kernels/prefill-inl.h"
#include "../kernels/table-inl.h"
#include "../kernels/measure-inl.h"

}  // namespace

extern const Kernels kAmxBf16Kernels = make_table("amx_bf16");
extern const Measures kAmxBf16Measures = make_measures();

}  // namespace localmoe

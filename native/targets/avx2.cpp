// The avx2 target: the kernels, compiled once more in a namespace of their own.
#include "../kernels.h"
#include "../measure.h"

#include <immintrin.h>

namespace localmoe {
namespace {

#include "../kernels/vec_avx2-inl.h"
#include "../kernels/fp8_f16c-inl.h"
// After the vectors: all else is written against them.
#include "../kernels/rows-inl.h"
#include "../kernels/weights-inl.h"
#include "../kernels/ahead_l1-inl.h"
#include "../kernels/gemv-inl.h"
#include "../kernels/gevm-inl.h"
#include "../kernels/gemm-inl.h"
#include "../kernels/latents-inl.h"
#include "../kernels/attend-inl.h"
#include "../kernels/prefill-inl.h"
#include "../kernels/table-inl.h"
#include "../kernels/measure-inl.h"

}  // namespace

extern const Kernels kAvx2Kernels = make_table("avx2");
extern const Measures kAvx2Measures = make_measures();

}  // namespace localmoe

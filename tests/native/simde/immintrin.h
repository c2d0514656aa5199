// Found before the compiler's own header: the instructions of any x86 target in portable C, by SIMDe.
#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// What SIMDe 0.8.2 lacks, or does otherwise than the processor: its masked moves touch the lanes that are masked out.

template <class Vector, class Lane>
Vector simulated_masked_load(unsigned mask, const void* from) {
  Lane lanes[sizeof(Vector) / sizeof(Lane)] = {};
  for (unsigned i = 0; i < sizeof(Vector) / sizeof(Lane); ++i) {
    if (mask >> i & 1) lanes[i] = static_cast<const Lane*>(from)[i];
  }
  return __builtin_bit_cast(Vector, lanes);
}

template <class Lane, class Vector>
void simulated_masked_store(void* to, unsigned mask, Vector x) {
  Lane lanes[sizeof(Vector) / sizeof(Lane)];
  __builtin_memcpy(lanes, &x, sizeof x);
  for (unsigned i = 0; i < sizeof(Vector) / sizeof(Lane); ++i) {
    if (mask >> i & 1) static_cast<Lane*>(to)[i] = lanes[i];
  }
}

inline __m256i simulated_narrow(__m512i x) {
  int32_t wide[16];
  int16_t narrow[16];
  __builtin_memcpy(wide, &x, sizeof x);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<int16_t>(wide[i]);
  return __builtin_bit_cast(__m256i, narrow);
}

#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm256_maskz_loadu_epi16
#undef _mm256_mask_storeu_epi16
#define _mm512_maskz_loadu_ps simulated_masked_load<__m512, float>
#define _mm512_mask_storeu_ps simulated_masked_store<float>
#define _mm256_maskz_loadu_epi16 simulated_masked_load<__m256i, uint16_t>
#define _mm256_mask_storeu_epi16 simulated_masked_store<uint16_t>
#define _mm512_cvtepi32_epi16 simulated_narrow
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC

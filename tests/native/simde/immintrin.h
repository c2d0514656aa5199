// Found before the compiler's own header: the instructions of any x86 target in portable C, by SIMDe.
#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/hedley.h>
// Without optimisation a static function is compiled although nobody calls it, unless it is an inline one.
#undef HEDLEY_NEVER_INLINE
#define HEDLEY_NEVER_INLINE inline __attribute__((noinline))
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// What SIMDe 0.8.2 lacks, or does otherwise than the processor: its masked moves touch the lanes that are masked out.

template <class Vector, class Lane>
Vector simulated_masked_load(uint64_t mask, const void* from) {
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

// Products take most of the time: these are worth optimising.
#pragma GCC push_options
#pragma GCC optimize("O2")
inline float simulated_flushed(float x) { return __builtin_fabsf(x) < 0x1p-126F ? 0 : x; }

// Two products a lane; denormals are zero wherever they come in and wherever they would come out.
// Not inlined, like the look-up below: unrolled kernels hold them by the hundred, and the compiler takes its time.
__attribute__((noinline)) inline __m512 simulated_dot(__m512 sums, __m512bh a, __m512bh b) {
  float lanes[16];
  uint16_t words[2][32];
  __builtin_memcpy(lanes, &sums, sizeof sums);
  __builtin_memcpy(words[0], &a, sizeof a);
  __builtin_memcpy(words[1], &b, sizeof b);
  for (int i = 0; i < 32; ++i) {
    const auto factor = [&](int which) { return simulated_flushed(__builtin_bit_cast(float, uint32_t{words[which][i ^ 1]} << 16)); };
    float& sum = lanes[i / 2];
    sum = simulated_flushed(simulated_flushed(sum) + simulated_flushed(factor(0) * factor(1)));  // the odd one first
  }
  return __builtin_bit_cast(__m512, lanes);
}

__attribute__((noinline)) inline __m512i simulated_look_up(__m512i low, __m512i codes, __m512i high) {
  return simde_mm512_permutex2var_epi8(low, codes, high);
}

// AMX: eight tiles of 16 rows of 64 bytes. Only what the kernels use; every tile is whole.
struct SimulatedTiles {
  uint32_t of[8][16][16];
};
inline thread_local SimulatedTiles simulated_tiles;

inline void simulated_tile_load(int tile, const void* from, ptrdiff_t stride) {
  for (int row = 0; row < 16; ++row) __builtin_memcpy(simulated_tiles.of[tile][row], static_cast<const char*>(from) + row * stride, 64);
}
inline void simulated_tile_store(int tile, void* to, ptrdiff_t stride) {
  for (int row = 0; row < 16; ++row) __builtin_memcpy(static_cast<char*>(to) + row * stride, simulated_tiles.of[tile][row], 64);
}
__attribute__((noinline)) inline void simulated_tile_dot(int sums, int a, int b) {
  const auto value = [](uint32_t pair, int which) { return simulated_flushed(__builtin_bit_cast(float, which ? pair & 0xffff0000 : pair << 16)); };
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      float sum = simulated_flushed(__builtin_bit_cast(float, simulated_tiles.of[sums][row][column]));
      for (int k = 0; k < 16; ++k) {
        for (int which = 0; which < 2; ++which) {
          const float product = value(simulated_tiles.of[a][row][k], which) * value(simulated_tiles.of[b][k][column], which);
          sum = simulated_flushed(sum + simulated_flushed(product));
        }
      }
      simulated_tiles.of[sums][row][column] = __builtin_bit_cast(uint32_t, sum);
    }
  }
}
#pragma GCC pop_options
#define _tile_loadconfig(shapes) static_cast<void>(shapes)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(tile) __builtin_memset(simulated_tiles.of[tile], 0, sizeof simulated_tiles.of[tile])
#define _tile_loadd simulated_tile_load
#define _tile_stored simulated_tile_store
#define _tile_dpbf16ps simulated_tile_dot

#undef _mm512_maskz_loadu_epi8
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi8 simulated_masked_load<__m512i, uint8_t>
#define _mm512_maskz_loadu_epi16 simulated_masked_load<__m512i, uint16_t>
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm256_maskz_loadu_epi16
#undef _mm256_mask_storeu_epi16
#undef _mm512_dpbf16_ps
#undef _mm512_permutex2var_epi8
#define _mm512_maskz_loadu_ps simulated_masked_load<__m512, float>
#define _mm512_mask_storeu_ps simulated_masked_store<float>
#define _mm256_maskz_loadu_epi16 simulated_masked_load<__m256i, uint16_t>
#define _mm256_mask_storeu_epi16 simulated_masked_store<uint16_t>
#define _mm512_dpbf16_ps simulated_dot
#define _mm512_permutex2var_epi8 simulated_look_up
#define _mm512_cvtepi32_epi16 simulated_narrow
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC

// Sixteen lanes in AVX-512 (F, BW, VL, DQ). Same vocabulary as vec_scalar-inl.h; FP8 goes through FP16, as in
// fp8_f16c-inl.h, which says why.

#define KERNEL_UNROLL _Pragma("GCC unroll 32")

constexpr int kLanes = 16;
constexpr int kMicroRows = 24;      // 24 x 16 sums take 24 of the 32 registers
constexpr int kGemvRows[] = {4, 4, 4, 4, 4, 4, 3, 3};  // rows that gemv takes at a time, for 1 to 8 tokens
constexpr int kGemvChains = 8;      // FMAs that have to be under way at the same time
constexpr int kManySums = 5;        // tokens whose sums fill the registers
constexpr int kRegisters = 32;

struct Vec {
  __m512 v;
};

struct Whole {};                    // all lanes of a vector
struct Part {                       // its first n lanes, 0 < n < kLanes
  int n;
};

KERNEL_INLINE __mmask16 part_mask(Part part) { return static_cast<__mmask16>((1U << part.n) - 1); }

KERNEL_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
KERNEL_INLINE Vec zeros() { return {_mm512_setzero_ps()}; }
KERNEL_INLINE Vec load(const float* p, Whole = {}) { return {_mm512_loadu_ps(p)}; }
KERNEL_INLINE Vec load(const float* p, Part part) { return {_mm512_maskz_loadu_ps(part_mask(part), p)}; }
KERNEL_INLINE void store(float* p, Vec x, Whole = {}) { _mm512_storeu_ps(p, x.v); }
KERNEL_INLINE void store(float* p, Vec x, Part part) { _mm512_mask_storeu_ps(p, part_mask(part), x.v); }

KERNEL_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
KERNEL_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
KERNEL_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
KERNEL_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
KERNEL_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
KERNEL_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
KERNEL_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
// x, or 0 where key < bound.
KERNEL_INLINE Vec zero_below(Vec x, Vec key, Vec bound) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(key.v, bound.v, _CMP_NLT_UQ), x.v)};
}
KERNEL_INLINE Vec round_nearest(Vec x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^x for whole x in [-126, 127].
KERNEL_INLINE Vec power_of_two(Vec x) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(x.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

// Rows become columns: first inside the 4 x 4 blocks of each quarter, then the quarters among each other.
KERNEL_INLINE void transpose(Vec (&x)[kLanes]) {
  __m512 pairs[16], quads[16];
  KERNEL_UNROLL for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  KERNEL_UNROLL for (int i = 0; i < 16; i += 4) {
    KERNEL_UNROLL for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm512_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0x44);
      quads[i + 2 * j + 1] = _mm512_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0xee);
    }
  }
  KERNEL_UNROLL for (int i = 0; i < 4; ++i) {
    const __m512 even_above = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0x88);
    const __m512 odd_above = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0xdd);
    const __m512 even_below = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0x88);
    const __m512 odd_below = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0xdd);
    x[i].v = _mm512_shuffle_f32x4(even_above, even_below, 0x88);
    x[i + 4].v = _mm512_shuffle_f32x4(odd_above, odd_below, 0x88);
    x[i + 8].v = _mm512_shuffle_f32x4(even_above, even_below, 0xdd);
    x[i + 12].v = _mm512_shuffle_f32x4(odd_above, odd_below, 0xdd);
  }
}

KERNEL_INLINE float sum_lanes(Vec x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
KERNEL_INLINE float max_lane(Vec x) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}
KERNEL_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

KERNEL_INLINE Vec widen_bf16(__m256i words) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
}
KERNEL_INLINE Vec load_bf16(const uint16_t* p, Whole = {}) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KERNEL_INLINE Vec load_bf16(const uint16_t* p, Part part) {
  return widen_bf16(_mm256_maskz_loadu_epi16(part_mask(part), p));
}
KERNEL_INLINE __m256i narrow_bf16(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);  // rounding could carry a NaN into -0
  const __m512i wide = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(wide, 16));
}
KERNEL_INLINE void store_bf16(uint16_t* p, Vec x, Whole = {}) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
KERNEL_INLINE void store_bf16(uint16_t* p, Vec x, Part part) {
  _mm256_mask_storeu_epi16(p, part_mask(part), narrow_bf16(x));
}

constexpr Fp8Units kFp8Units{256.0f, 256.0f, 1.0f};
KERNEL_INLINE Vec load_fp8(const uint8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
  return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), mask))};
}

// 32 codes in the order that suits the decoder, half of them at a time: place i holds element fp8_order(i), all even
// elements before the odd ones.
constexpr int fp8_order(int place) { return place % 16 * 2 + place / 16; }
KERNEL_INLINE void load_fp8_half(const uint8_t* p, int half, Vec (&out)[16 / kLanes]) {
  __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if (half == 0) codes = _mm256_slli_epi16(codes, 8);
  const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
  out[0].v = _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(codes, 1), mask));
}

// Loads before this are not kept for what comes after it: one from L1 is cheaper than a register.
KERNEL_INLINE void keep_order() { asm volatile("" ::: "memory"); }
// x, in a register: where several operations take it, compilers load it again for each, and loads are the bottleneck.
KERNEL_INLINE Vec in_register(Vec x) {
#ifdef __AVX512F__
  asm("" : "+v"(x.v));
#endif
  return x;
}
KERNEL_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

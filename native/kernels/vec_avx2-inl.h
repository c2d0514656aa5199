// Eight lanes in AVX2, FMA and F16C. Same vocabulary as vec_scalar-inl.h, but for FP8, which fp8_*-inl.h decode.

#define KERNEL_UNROLL _Pragma("GCC unroll 32")

constexpr int kLanes = 8;
constexpr int kMicroRows = 6;       // 6 x 16 sums take 12 of the 16 registers
constexpr int kGemvRows[] = {4, 4, 2, 2, 2, 1, 1, 1};  // rows that gemv takes at a time, for 1 to 8 tokens
constexpr int kGemvChains = 8;      // FMAs that have to be under way at the same time
constexpr int kManySums = 6;        // tokens whose sums fill the registers
constexpr int kRegisters = 16;

struct Vec {
  __m256 v;
};

struct Whole {};                    // all lanes of a vector
struct Part {                       // its first n lanes, 0 < n < kLanes
  int n;
};

KERNEL_INLINE __m256i part_mask(Part part) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(part.n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

KERNEL_INLINE Vec splat(float x) { return {_mm256_set1_ps(x)}; }
KERNEL_INLINE Vec zeros() { return {_mm256_setzero_ps()}; }
KERNEL_INLINE Vec load(const float* p, Whole = {}) { return {_mm256_loadu_ps(p)}; }
KERNEL_INLINE Vec load(const float* p, Part part) { return {_mm256_maskload_ps(p, part_mask(part))}; }
KERNEL_INLINE void store(float* p, Vec x, Whole = {}) { _mm256_storeu_ps(p, x.v); }
KERNEL_INLINE void store(float* p, Vec x, Part part) { _mm256_maskstore_ps(p, part_mask(part), x.v); }

KERNEL_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
KERNEL_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
KERNEL_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
KERNEL_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
KERNEL_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
KERNEL_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
KERNEL_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
// x, or 0 where key < bound.
KERNEL_INLINE Vec zero_below(Vec x, Vec key, Vec bound) {
  return {_mm256_and_ps(x.v, _mm256_cmp_ps(key.v, bound.v, _CMP_NLT_UQ))};
}
KERNEL_INLINE Vec round_nearest(Vec x) {
  return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^x for whole x in [-126, 127].
KERNEL_INLINE Vec power_of_two(Vec x) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(x.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}

// Rows become columns.
KERNEL_INLINE void transpose(Vec (&x)[kLanes]) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i].v, x[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0x44);
      quads[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    x[i].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    x[i + 4].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

KERNEL_INLINE float sum_lanes(Vec x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
KERNEL_INLINE float max_lane(Vec x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
KERNEL_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

KERNEL_INLINE Vec load_bf16(const uint16_t* p, Whole = {}) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16))};
}
KERNEL_INLINE Vec load_bf16(const uint16_t* p, Part part) {
  uint16_t words[kLanes] = {};
  for (int i = 0; i < part.n; ++i) words[i] = p[i];
  return load_bf16(words);
}
KERNEL_INLINE void store_bf16(uint16_t* p, Vec x, Whole = {}) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));  // rounding could carry a NaN into -0
  const __m256 is_nan = _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q);
  const __m256i wide = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan)), 16);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(words));
}
KERNEL_INLINE void store_bf16(uint16_t* p, Vec x, Part part) {
  uint16_t words[kLanes];
  store_bf16(words, x);
  for (int i = 0; i < part.n; ++i) p[i] = words[i];
}

// Loads before this are not kept for what comes after it: one from L1 is cheaper than a register.
KERNEL_INLINE void keep_order() { asm volatile("" ::: "memory"); }
KERNEL_INLINE Vec in_register(Vec x) { return x; }  // no difference: there are few rows to take it
KERNEL_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

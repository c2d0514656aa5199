// FP8 straight to FP32 bits, for eight lanes: sign to bit 31, the seven low bits to 26..20 is exactly value / 2^120.
//
// FP8 subnormals are FP32 denormals then. An FMA that meets one costs about 120 cycles on Intel cores and nothing on
// AMD's, where VCVTPH2PS takes two operations: out of L2, one Zen 3 core decodes and multiplies 19 to 22 GB/s this way,
// 12 to 14 by way of FP16.

// In halves: activations of 256 times 2^120 would overflow. So those of up to 3e20 do not, and products down to 1e-20 are
// no denormals.
constexpr Fp8Units kFp8Units{1.0f, 0x1p60f, 0x1p60f};

KERNEL_INLINE __m256i fp8_mask() { return _mm256_set1_epi32(static_cast<int>(0x87f00000)); }

KERNEL_INLINE Vec load_fp8(const uint8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits = _mm256_and_si256(_mm256_slli_epi32(words, 20), fp8_mask());
  return {_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f))};
}

// 32 codes in the order that suits the decoder, half of them at a time: place i holds element fp8_order(i). Lane i of
// the four vectors takes bytes 4 i, 4 i + 2, 4 i + 1, 4 i + 3, wherever they are.
constexpr int fp8_order(int place) { return place % 8 * 4 + place / 8 % 2 * 2 + place / 16; }
KERNEL_INLINE void load_fp8_half(const uint8_t* p, int half, Vec (&out)[16 / kLanes]) {
  __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if (half == 0) codes = _mm256_slli_epi16(codes, 8);
  const __m256i high = _mm256_srai_epi16(codes, 4);
  out[0].v = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(high, 16), fp8_mask()));
  out[1].v = _mm256_castsi256_ps(_mm256_and_si256(high, fp8_mask()));
}

// FP8 by way of FP16, for eight lanes: sign to bit 15, the seven low bits to 13..7 is exactly value / 2^8, subnormals
// included, and VCVTPH2PS takes FP16 subnormals at full speed.

constexpr Fp8Units kFp8Units{256.0f, 256.0f, 1.0f};

KERNEL_INLINE Vec load_fp8(const uint8_t* p) {
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(static_cast<short>(0xbf80))))};
}

// 32 codes in the order that suits the decoder, half of them at a time: place i holds element fp8_order(i), all even
// elements before the odd ones.
constexpr int fp8_order(int place) { return place % 16 * 2 + place / 16; }
KERNEL_INLINE void load_fp8_half(const uint8_t* p, int half, Vec (&out)[16 / kLanes]) {
  __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if (half == 0) codes = _mm256_slli_epi16(codes, 8);
  const __m256i words = _mm256_and_si256(_mm256_srai_epi16(codes, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  out[0].v = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
  out[1].v = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
}

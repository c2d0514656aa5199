// FP8 to BF16 by look-up in VBMI tables: exact for all codes, and none of the results is a denormal.

// The two bytes of the BF16 of FP8 codes 0 to 127.
struct Bf16Bytes {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};

constexpr Bf16Bytes bf16_bytes_of_fp8() {
  Bf16Bytes bytes{};
  for (int code = 1; code < 128; ++code) {
    int exponent = code >> 3;
    int fraction = code & 7;
    if (exponent == 0) {  // a subnormal, fraction / 8 * 2^-6: up to where its leading one is left out as well
      for (exponent = 1; fraction < 8; fraction *= 2) --exponent;
      fraction -= 8;
    }
    const int word = (exponent + 120) << 7 | fraction << 4;  // biases 127 and 7
    bytes.low[code] = static_cast<uint8_t>(word);
    bytes.high[code] = static_cast<uint8_t>(word >> 8);
  }
  return bytes;
}

constexpr Bf16Bytes kBf16Bytes = bf16_bytes_of_fp8();

// kBf16Bytes.low or .high of each code's low seven bits.
KERNEL_INLINE __m512i look_up(const uint8_t (&table)[128], __m512i codes) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
}

// The BF16 of 64 codes: of each 16 the first 8 in `first`, the others in `last`.
KERNEL_INLINE void decode_bf16(__m512i codes, __m512i& first, __m512i& last) {
  const __m512i low = look_up(kBf16Bytes.low, codes);
  const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  const __m512i high = _mm512_or_si512(look_up(kBf16Bytes.high, codes), sign);
  first = _mm512_unpacklo_epi8(low, high);
  last = _mm512_unpackhi_epi8(low, high);
}

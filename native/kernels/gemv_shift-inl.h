// gemv's products of FP8 weights on AMD's AVX-512: 64 codes straight to FP32 bits, as in fp8_shift-inl.h, which says why.
//
// On a Zen 4 core FMAs take two of four pipes. Shifts take the other two, and ANDs any: so decoding 64 codes hides
// behind the FMAs of two tokens. Table look-ups (VPERMI2B) and VCVTPH2PS take the FMAs' pipes: with them one token took
// 9.0 and 11.0 cycles for 64 codes from L1, this way 7.9; four took 21.0 and 23.8, now 19.1 (16 are FMAs).

template <class W>
struct Products;

template <>
struct Products<Fp8Weights> {
  using Weights = Vec;
  using Operand = Vec;
  static constexpr int kStep = 64;
  static constexpr int kLeast = 64;
  static constexpr int kWidth = kLanes;
  static constexpr int kManyTokens = 6;
  // The even codes and the odd ones; for many tokens, whose sums take most registers, half of each.
  static constexpr int parts(int tokens) { return tokens < kManyTokens ? 2 : 4; }
  static constexpr float kOperandUnit = 0x1p60f;
  static constexpr float kSumUnit = 0x1p60f;
  static constexpr bool keeps_sums(int tokens) { return tokens >= kManySums; }

  // Lane i of the four vectors takes codes 4 i, 4 i + 2, 4 i + 1, 4 i + 3.
  static constexpr int order(int place) { return place % 16 * 4 + place / 16 % 2 * 2 + place / 32; }
  static KERNEL_INLINE void prepare(const float* x, float* out) {
    for (int i = 0; i < kLeast; ++i) out[i] = x[order(i)] * kOperandUnit;
  }
  static KERNEL_INLINE Vec load_operand(const float* x) { return load(x); }
  static KERNEL_INLINE Vec in_registers(Vec x) { return in_register(x); }
  static KERNEL_INLINE void load_part(const uint8_t* p, int part, Vec (&out)[2]) {
    const __m512i words = load_words(p, part);
    out[0] = masked(_mm512_slli_epi32(words, 16));
    out[1] = masked(words);
  }
  static KERNEL_INLINE void load_part(const uint8_t* p, int part, Vec (&out)[1]) {
    const __m512i words = load_words(p, part / 2);
    out[0] = masked(part % 2 == 0 ? _mm512_slli_epi32(words, 16) : words);
  }
  static KERNEL_INLINE Vec add(Vec weights, Vec x, Vec sum) { return fma(weights, x, sum); }

 private:
  // The upper bytes of 32 words, or their lower ones: sign to bit 15, the others to 10..4.
  static KERNEL_INLINE __m512i load_words(const uint8_t* p, int upper) {
    const __m512i codes = _mm512_loadu_si512(p);
    return _mm512_srai_epi16(upper ? codes : _mm512_slli_epi16(codes, 8), 4);
  }
  static KERNEL_INLINE Vec masked(__m512i words) {
    return {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0x87f00000))))};
  }
};

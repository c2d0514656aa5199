// gemv's products of FP8 weights in AVX-512: 64 codes straight to FP32 bits, as in fp8_shift-inl.h, which says why.
//
// On a Zen 4 core FMAs take two of four pipes. Shifts take the other two, and ANDs any: so decoding 64 codes hides
// behind the FMAs of two tokens. Table look-ups (VPERMI2B) and VCVTPH2PS take the FMAs' pipes: with them one token took
// 9.0 and 11.0 cycles for 64 codes from L1, this way 7.9; four took 21.0 and 23.8, now 19.1 (16 are FMAs).

// A target says in kDenormalsCost whether an FMA that meets one takes long, as Intel's do. There a group with an exponent of
// zero is looked for, and found rarely, in one group in 140 of normal numbers; it goes by way of FP16. The others' exponents
// get a bias in the operation that masks them: so all weights are 2^-8 times themselves, as FP16 has them.

template <class W>
struct Products;

struct ShiftedCodes {
  using Weights = Vec;
  using Operand = Vec;
  static constexpr int kStep = 64;
  static constexpr int kLeast = 64;
  static constexpr int kWidth = kLanes;
  static constexpr int kManyTokens = 6;
  // The even codes and the odd ones; for many tokens, whose sums take most registers, half of each.
  static constexpr int parts(int tokens) { return tokens < kManyTokens ? 2 : 4; }
  static constexpr float kOperandUnit = kDenormalsCost ? 0x1p8f : 0x1p60f;
  static constexpr float kSumUnit = kDenormalsCost ? 1.0f : 0x1p60f;
  static constexpr bool keeps_sums(int tokens) { return tokens >= kManySums; }

  // Lane i of the four vectors takes codes 4 i, 4 i + 2, 4 i + 1, 4 i + 3.
  static constexpr int order(int place) { return place % 16 * 4 + place / 16 % 2 * 2 + place / 32; }
  static KERNEL_INLINE void prepare(const float* x, float* out) {
    for (int i = 0; i < kLeast; ++i) out[i] = x[order(i)] * kOperandUnit;
  }
  static KERNEL_INLINE Vec load_operand(const float* x) { return load(x); }
  static KERNEL_INLINE Vec in_registers(Vec x) { return in_register(x); }
  static KERNEL_INLINE Vec add(Vec weights, Vec x, Vec sum) { return fma(weights, x, sum); }

 protected:
  // The upper bytes of 32 words, or their lower ones: sign to bit 15, and copies of it behind.
  template <int kShift>
  static KERNEL_INLINE __m512i load_words(const uint8_t* p, int upper) {
    const __m512i codes = _mm512_loadu_si512(p);
    return _mm512_srai_epi16(upper ? codes : _mm512_slli_epi16(codes, 8), kShift);
  }
};

template <>
struct Products<Fp8Weights> : ShiftedCodes {
  static KERNEL_INLINE void load_part(const uint8_t* p, int part, Vec (&out)[2]) {
    const __m512i words = load_words<4>(p, part);
    out[0] = masked(_mm512_slli_epi32(words, 16));
    out[1] = masked(words);
  }
  static KERNEL_INLINE void load_part(const uint8_t* p, int part, Vec (&out)[1]) {
    const __m512i words = load_words<4>(p, part / 2);
    out[0] = masked(part % 2 == 0 ? _mm512_slli_epi32(words, 16) : words);
  }

 private:
  static KERNEL_INLINE Vec masked(__m512i words) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x87f00000));
    if constexpr (!kDenormalsCost) return {_mm512_castsi512_ps(_mm512_and_si512(words, mask))};
    const __m512i bias = _mm512_set1_epi32(112 << 23);
    return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(words, mask, bias, 0xea))};  // words & mask | bias
  }
};

// The same codes where some are denormals.
struct DenormalFp8 : Fp8Weights {};

template <>
struct Products<DenormalFp8> : ShiftedCodes {
  static KERNEL_INLINE void load_part(const uint8_t* p, int part, Vec (&out)[2]) {
    const __m512i halves = load_words<1>(p, part);
    out[0] = widened(halves);
    out[1] = widened(_mm512_srli_epi32(halves, 16));
  }
  static KERNEL_INLINE void load_part(const uint8_t* p, int part, Vec (&out)[1]) {
    const __m512i halves = load_words<1>(p, part / 2);
    out[0] = widened(part % 2 == 0 ? halves : _mm512_srli_epi32(halves, 16));
  }

 private:
  // The lower words, as FP16 once a copy of the sign and what is behind are masked.
  static KERNEL_INLINE Vec widened(__m512i words) {
    const __m256i halves = _mm256_and_si256(_mm512_cvtepi32_epi16(words), _mm256_set1_epi16(static_cast<short>(0xbf80)));
    return {_mm512_cvtph_ps(halves)};
  }
};

struct alignas(64) Bytes {
  uint8_t of[64];
};
constexpr Bytes all(uint8_t value) {
  Bytes bytes{};
  for (uint8_t& byte : bytes.of) byte = value;
  return bytes;
}
constexpr Bytes kExponent = all(0x78);

template <class W>
struct Rare;

// Which groups need something else, and what: of some rows, `stride` apart.
template <>
struct Rare<Fp8Weights> {
  using Weights = DenormalFp8;
  template <int Rows>
  static KERNEL_INLINE bool is_one(const uint8_t* p, ptrdiff_t stride) {
    if constexpr (!kDenormalsCost) return false;
    __mmask64 normal = _mm512_test_epi8_mask(_mm512_loadu_si512(p), _mm512_load_si512(kExponent.of));
    KERNEL_UNROLL for (int r = 1; r < Rows; ++r) {
      const __m512i codes = _mm512_loadu_si512(p + r * stride);
#ifdef __AVX512F__
      // By way of one mask: of the intrinsic GCC 12 makes two, and copies one to the other.
      asm("vptestmb %2, %1, %0%{%0%}" : "+Yk"(normal) : "v"(codes), "m"(kExponent));
    }
    return __builtin_expect(!_kortestc_mask64_u8(normal, normal), false);
#else
      normal &= _mm512_test_epi8_mask(codes, _mm512_load_si512(kExponent.of));
    }
    return normal != ~__mmask64{0};
#endif
  }
};

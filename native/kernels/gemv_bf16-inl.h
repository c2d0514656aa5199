// gemv's products in AVX-512 BF16 and VBMI: weights as exact BF16, each activation as the sum of two BF16 terms.
//
// x = high + low, each rounded to nearest, leaves out at most 2^-17 |x|: BF16 has 8 significant bits, so |x - high| is
// at most 2^-8 of x's power of two, and what low leaves of that at most 2^-17. A product with either term is exact.
// VDPBF16PS takes denormals for zero and makes none. FP8 has none in BF16, its own subnormals are normal there; an
// activation's products lose up to 2^-126 each, which stays below the 2^-17 down to |x| = 2^-100 (about 1e-30).
//
// 32 activations lie as 32 high terms and 32 low ones, in the order of the columns: so pieces may begin at every
// multiple of 32, and FP8 and BF16 weights read the same.

template <class W>
struct Products;

struct Words {
  __m512i v;  // 32 BF16
};

struct SplitProducts {
  using Weights = Words;
  struct Operand {
    __m512bh high, low;
  };
  static constexpr int kWidth = 32;
  static constexpr int kParts = 1;

  static KERNEL_INLINE void prepare(const float* x, float* out) {
    auto* high = reinterpret_cast<__m256i*>(out);
    auto* low = high + 2;
    KERNEL_UNROLL for (int i = 0; i < 2; ++i) {
      const Vec value = load(x + i * kLanes);
      const __m256i rounded = narrow_bf16(value);
      _mm256_storeu_si256(high + i, rounded);
      _mm256_storeu_si256(low + i, narrow_bf16(value - widen_bf16(rounded)));
    }
  }

  static KERNEL_INLINE Operand load_operand(const float* x) {
    const auto* terms = reinterpret_cast<const __m512i*>(x);
    return {reinterpret_cast<__m512bh>(_mm512_loadu_si512(terms)), reinterpret_cast<__m512bh>(_mm512_loadu_si512(terms + 1))};
  }
  static KERNEL_INLINE Vec add(Words weights, const Operand& x, Vec sum) {
    const auto factor = reinterpret_cast<__m512bh>(weights.v);
    return {_mm512_dpbf16_ps(_mm512_dpbf16_ps(sum.v, factor, x.low), factor, x.high)};
  }
};

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

template <>
struct Products<Fp8Weights> : SplitProducts {
  static constexpr int kStep = 64;

  static KERNEL_INLINE void load_part(const uint8_t* p, int, Words (&out)[2]) {
    decode(_mm512_loadu_si512(p), out[0], out[1]);
  }
  static KERNEL_INLINE void load_part(const uint8_t* p, int, Words (&out)[1]) {
    Words nothing;
    decode(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), out[0], nothing);
  }

 private:
  // The first and the last 32 of 64 codes.
  static KERNEL_INLINE void decode(__m512i in_order, Words& first, Words& last) {
    // Unpacking takes 8 of every 16 bytes: these become the halves.
    const __m512i codes = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), in_order);
    const __m512i low = look_up(kBf16Bytes.low, codes);
    const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i high = _mm512_or_si512(look_up(kBf16Bytes.high, codes), sign);
    first.v = _mm512_unpacklo_epi8(low, high);
    last.v = _mm512_unpackhi_epi8(low, high);
  }
  // table[code % 128] for each byte.
  static KERNEL_INLINE __m512i look_up(const uint8_t (&table)[128], __m512i codes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  }
};

template <>
struct Products<Bf16Weights> : SplitProducts {
  static constexpr int kStep = 32;
  static KERNEL_INLINE void load_part(const uint16_t* p, int, Words (&out)[1]) { out[0].v = _mm512_loadu_si512(p); }
};

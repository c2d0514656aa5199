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
  static constexpr int kLeast = 32;
  static constexpr int parts(int /*tokens*/) { return 1; }
  static constexpr float kSumUnit = 1.0f;

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
  static KERNEL_INLINE Operand in_registers(Operand x) { return x; }
  static KERNEL_INLINE Vec add(Words weights, const Operand& x, Vec sum) {
    const auto factor = reinterpret_cast<__m512bh>(weights.v);
    return {_mm512_dpbf16_ps(_mm512_dpbf16_ps(sum.v, factor, x.low), factor, x.high)};
  }
};

template <>
struct Products<Fp8Weights> : SplitProducts {
  static constexpr int kStep = 64;
  static constexpr bool keeps_sums(int /*tokens*/) { return false; }  // BF16 has no room for scales

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
    // decode_bf16 takes 8 of every 16 codes: these become the halves.
    decode_bf16(_mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), in_order), first.v, last.v);
  }
};

template <>
struct Products<Bf16Weights> : SplitProducts {
  static constexpr int kStep = 32;
  static constexpr bool keeps_sums(int tokens) { return tokens >= kManySums; }
  static KERNEL_INLINE void load_part(const uint16_t* p, int, Words (&out)[1]) { out[0].v = _mm512_loadu_si512(p); }
};

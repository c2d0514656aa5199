// AMX: tile registers of 16 rows of 64 bytes, and products of BF16 tiles.
//
// TDPBF16PS adds to tile c[row][column] the products of a[row][k] and b[k][column], k = 0..31. Rows of a are weights as
// they lie in memory; b has two k side by side in each column: activations are laid out so once, weights never.
// An activation goes as the sum of three BF16 terms, 24 bits in all, so that nothing of it is left out but terms below 2^-126:
// TDPBF16PS takes denormals for zero and makes none.

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;
constexpr int kTileSize = kTileRows * kTileRowBytes;  // bytes
constexpr int kTerms = 3;
constexpr int kTermTiles = kTerms * kTileSize;        // a tile of each term
constexpr int kTileGroup = 64;                        // weights of a row decoded at once: a row of two tiles

// The tile registers of this thread, while it lives.
class Tiles {
 public:
  Tiles() {
    Shapes shapes;
    for (int i = 0; i < 8; ++i) {
      shapes.row_bytes[i] = kTileRowBytes;
      shapes.rows[i] = kTileRows;
    }
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct alignas(64) Shapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
};

// The part of 16 values that BF16 holds: their first 8 significant bits.
KERNEL_INLINE Vec bf16_part(Vec x) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}

// Those parts of two vectors side by side: lane i has x's in its low half, y's in its high one.
KERNEL_INLINE __m512i pair_bf16(Vec x, Vec y) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(x.v), 16), _mm512_castps_si512(bf16_part(y).v));
}

// A row of a tile, and the same one of the tiles of the next terms.
KERNEL_INLINE void store_terms(Vec x, Vec y, uint8_t* at) {
  KERNEL_UNROLL for (int term = 0; term < kTerms; ++term, at += kTileSize) {
    _mm512_storeu_si512(at, pair_bf16(x, y));
    x = x - bf16_part(x);
    y = y - bf16_part(y);
  }
}

// FP8 codes in the upper bytes of words as BF16, 2^-8 times themselves: shifted, their exponents e are read as e - 15. Not for
// codes with an exponent of zero.
KERNEL_INLINE __m512i shifted_codes(__m512i words) {
  const __m512i mask = _mm512_set1_epi16(static_cast<short>(0x87f0));
  const __m512i bias = _mm512_set1_epi16(112 << 7);
  return _mm512_ternarylogic_epi32(_mm512_srai_epi16(words, 4), mask, bias, 0xea);  // words & mask | bias
}

// The same of any codes, by way of FP16.
KERNEL_INLINE __m512i widened_codes(__m512i words) {
  const __m512i halves = _mm512_and_si512(_mm512_srai_epi16(words, 1), _mm512_set1_epi16(static_cast<short>(0xbf80)));
  const Vec front = {_mm512_cvtph_ps(_mm512_castsi512_si256(halves))};
  const Vec back = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
  return _mm512_inserti64x4(_mm512_castsi256_si512(narrow_bf16(front)), narrow_bf16(back), 1);
}

// How 64 weights of a row lie in two tiles: columns k and k + kPair side by side, and so in row row(k) of an operand of tile
// half(k). Values times kUnit are the weights.
template <class W>
struct Groups;

template <>
struct Groups<Fp8Weights> {
  static constexpr float kUnit = 256.0f;
  static constexpr int kPair = 2;
  static constexpr int half(int k) { return k % 2; }
  static constexpr int row(int k) { return k / 4; }
  // Of some rows.
  template <int Num>
  static KERNEL_INLINE void load(const uint8_t* p, ptrdiff_t stride, __m512i (&out)[Num][2]) {
    __m512i codes[Num];
    KERNEL_UNROLL for (int i = 0; i < Num; ++i) codes[i] = _mm512_loadu_si512(p + i * stride);
    const bool rare = Rare<Fp8Weights>::is_one<Num>(p, stride);
    KERNEL_UNROLL for (int i = 0; i < Num; ++i) split(codes[i], rare, out[i]);
  }
  // The first n of one row, zeros behind.
  static KERNEL_INLINE void load_part(const uint8_t* p, int n, __m512i (&out)[2]) {
    split(_mm512_maskz_loadu_epi8(~__mmask64{0} >> (kTileGroup - n), p), true, out);
  }

 private:
  static KERNEL_INLINE void split(__m512i codes, bool rare, __m512i (&out)[2]) {
    const __m512i even = _mm512_slli_epi16(codes, 8);
    out[0] = rare ? widened_codes(even) : shifted_codes(even);
    out[1] = rare ? widened_codes(codes) : shifted_codes(codes);
  }
};

template <>
struct Groups<Bf16Weights> {
  static constexpr float kUnit = 1.0f;
  static constexpr int kPair = 1;
  static constexpr int half(int k) { return k / 32; }
  static constexpr int row(int k) { return k % 32 / 2; }
  template <int Num>
  static KERNEL_INLINE void load(const uint16_t* p, ptrdiff_t stride, __m512i (&out)[Num][2]) {
    KERNEL_UNROLL for (int i = 0; i < 2 * Num; ++i) out[i / 2][i % 2] = _mm512_loadu_si512(p + i / 2 * stride + i % 2 * 32);
  }
  static KERNEL_INLINE void load_part(const uint16_t* p, int n, __m512i (&out)[2]) {
    const __mmask64 mask = ~__mmask64{0} >> (kTileGroup - n);
    out[0] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), p);
    out[1] = n > 32 ? _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask >> 32), p + 32) : _mm512_setzero_si512();
  }
};

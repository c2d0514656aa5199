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

// A row's next 64 weights as BF16: of each 16 the first 8 in `first`, the others in `last`; zeros behind the first n.
KERNEL_INLINE void load_group(const uint8_t* p, __m512i& first, __m512i& last) {
  decode_bf16(_mm512_loadu_si512(p), first, last);
}
KERNEL_INLINE void load_group(const uint8_t* p, int n, __m512i& first, __m512i& last) {
  decode_bf16(_mm512_maskz_loadu_epi8(~__mmask64{0} >> (kTileGroup - n), p), first, last);
}
KERNEL_INLINE void part_groups(__m512i front, __m512i back, __m512i& first, __m512i& last) {
  first = _mm512_shuffle_i64x2(front, back, 0x88);
  last = _mm512_shuffle_i64x2(front, back, 0xdd);
}
KERNEL_INLINE void load_group(const uint16_t* p, __m512i& first, __m512i& last) {
  part_groups(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32), first, last);
}
KERNEL_INLINE void load_group(const uint16_t* p, int n, __m512i& first, __m512i& last) {
  const __mmask64 mask = ~__mmask64{0} >> (kTileGroup - n);
  const __m512i front = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), p);
  const __m512i back = n > 32 ? _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask >> 32), p + 32) : _mm512_setzero_si512();
  part_groups(front, back, first, last);
}

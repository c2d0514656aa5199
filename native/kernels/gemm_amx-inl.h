// gemm's products in AMX, for weights that BF16 holds exactly: a panel of weights as tiles, then strip by strip 16 rows times
// 16 columns of activations. A strip has, for each tile of weights, [16 pairs of columns][16][2] BF16.
//
// The 16 are tokens, in a tile for each of the three terms. Of a strip of few tokens the terms lie side by side: of eight in
// two tiles, the other half of the third term's zero; of five in one. All of a strip's tiles add to the same sums.

template <class W>
struct Gemm;

constexpr int kPanelRows = 48;                  // three tiles of sums: as many as each of a strip's tiles is loaded for
constexpr int kPanelRowTiles = kPanelRows / kTileRows;
constexpr int kGroupBytes = 2 * kPanelRowTiles * kTileSize;  // of 64 columns of a panel
constexpr int kPanelBytes = kBlock / kTileGroup * kGroupBytes;
static_assert(kTileGroup == 64 && kPanelRows == kGemmRows);

// Calls body with the places that tokens have in each tile of a strip of so many.
template <class Body>
KERNEL_INLINE void with_places(int tokens, Body body) {
  if (tokens <= 5) return body(IntTag<5>{});
  if (tokens <= 8) return body(IntTag<8>{});
  body(IntTag<kStrip>{});
}

// A strip's tiles for each tile of weights.
constexpr int strip_tiles(int places) { return (kTerms * places + kStrip - 1) / kStrip; }

// Lanes from this one on.
constexpr __mmask16 lanes_from(int lane) { return static_cast<__mmask16>(uint64_t{0xffff} << lane); }

// A row of each of a strip's tiles: two columns of the tokens, which the vectors have again and again.
template <int Places>
KERNEL_INLINE void store_places(Vec x, Vec y, uint8_t* at) {
  if constexpr (Places == kStrip) return store_terms(x, y, at);
  const Vec x2 = x - bf16_part(x);
  const Vec y2 = y - bf16_part(y);
  const __m512i third = pair_bf16(x2 - bf16_part(x2), y2 - bf16_part(y2));
  __m512i row = _mm512_mask_mov_epi32(pair_bf16(x, y), lanes_from(Places), pair_bf16(x2, y2));
  if constexpr (strip_tiles(Places) == 1) {
    row = _mm512_mask_mov_epi32(row, lanes_from(2 * Places), third);
  } else {
    _mm512_storeu_si512(at + kTileSize, _mm512_maskz_mov_epi32(static_cast<__mmask16>(~lanes_from(Places)), third));
  }
  _mm512_storeu_si512(at, row);
}

// sums[row][16] of one strip: a panel of some groups of 64 columns times the strip's part of it. Once a group's tiles are
// read, beside(group) may write to them.
template <int RowTiles, int StripTiles, class Beside>
KERNEL_INLINE void multiply_tiles(const uint8_t* panel, int groups, const uint8_t* strip, float* sums, Beside beside) {
  _tile_zero(0);
  if constexpr (RowTiles > 1) _tile_zero(1);
  if constexpr (RowTiles > 2) _tile_zero(2);
  for (int group = 0; group < groups; ++group) {
    for (int half = 0; half < 2; ++half, panel += kGroupBytes / 2) {
      _tile_loadd(3, panel, kTileRowBytes);
      if constexpr (RowTiles > 1) _tile_loadd(4, panel + kTileSize, kTileRowBytes);
      if constexpr (RowTiles > 2) _tile_loadd(5, panel + 2 * kTileSize, kTileRowBytes);
      for (int t = 0; t < StripTiles; ++t, strip += kTileSize) {
        _tile_loadd(6, strip, kTileRowBytes);
        _tile_dpbf16ps(0, 3, 6);
        if constexpr (RowTiles > 1) _tile_dpbf16ps(1, 4, 6);
        if constexpr (RowTiles > 2) _tile_dpbf16ps(2, 5, 6);
      }
    }
    beside(group);
  }
  _tile_stored(0, sums, kTileRowBytes);
  if constexpr (RowTiles > 1) _tile_stored(1, sums + kTileRows * kStrip, kTileRowBytes);
  if constexpr (RowTiles > 2) _tile_stored(2, sums + 2 * kTileRows * kStrip, kTileRowBytes);
}

// The rows of a panel, in spans that share their scales.
template <class W>
struct PanelRows {
  struct Span {
    const float* scales;
    int end;
  };
  const typename W::Element* row[kPanelRows];
  int num = 0;
  Span spans[4];
  int num_spans = 0;

  // Rows of another matrix, or of the only one.
  void add(const Matrix& w, int row0, int row1) {
    for (int r = row0; r < row1; ++r) {
      const float* scales = row_scales(w, r);
      if (r == row0 || scales != spans[num_spans - 1].scales) ++num_spans;
      row[num++] = row_of<W>(w, r);
      spans[num_spans - 1] = {scales, num};
    }
  }
};

template <class W>
struct GemmInTiles {
  using G = Groups<W>;
  static constexpr int kGemvTokens = 3;  // of four, two Xeon cores read 17 to 19 GB/s by gemv, 21 to 24 this way; of three as much
  static constexpr int kPairRows = kPanelRows / 2;
  static constexpr int kColumnFloats = kTerms * kStrip / 2;
  static constexpr int kKeptBytes = 3 << 19;  // of L2's 2 MB
  static constexpr size_t kScratchFloats = kPanelBytes / sizeof(float) + static_cast<size_t>(kPanelRows) * kStrip;

  static void pack(const float* const* x, int num_tokens, int cols, float* out) {
    with_places(num_tokens, [&](auto count) {
      constexpr int kPlaces = decltype(count)::value;
      int k = 0;
      for (; k + kLanes <= cols; k += kLanes) {
        Vec columns[kLanes];
        KERNEL_UNROLL for (int i = 0; i < kLanes; ++i) columns[i] = i % kPlaces < num_tokens ? load(x[i % kPlaces] + k) : zeros();
        transpose(columns);
        store_columns<kPlaces>(columns, k, out);
      }
      for (; k < padded(cols); k += kQuad) {
        float columns[kQuad][kStrip] = {};
        for (int j = 0; j < smaller(kQuad, cols - k); ++j) {
          for (int i = 0; i < kStrip; ++i) columns[j][i] = i % kPlaces < num_tokens ? x[i % kPlaces][k + j] : 0.0f;
        }
        const Vec quad[] = {load(columns[0]), load(columns[1]), load(columns[2]), load(columns[3])};
        store_columns<kPlaces>(quad, k, out);
      }
    });
  }

  static void pack_product(const float* c, int rows, int row0, int num_tokens, int cols, float* out) {
    with_places(num_tokens, [&](auto count) {
      constexpr int kPlaces = decltype(count)::value;
      const int end = row0 + rows == cols ? padded(cols) : row0 + rows;
      const auto column = [&](int k) { return k < row0 + rows ? repeated<kPlaces>(load(c + (k - row0) * kStrip)) : zeros(); };
      for (int k = row0; k < end;) {
        if (k % kQuad == 0 && k + kQuad <= end) {
          const Vec quad[] = {column(k), column(k + 1), column(k + 2), column(k + 3)};
          store_columns<kPlaces>(quad, k, out);
          k += kQuad;
        } else {
          store_single<kPlaces>(column(k), k, out);
          ++k;
        }
      }
    });
  }

  template <int Matrices>
  static void run(const Matrix* const (&w)[Matrices], int row0, int row1, const float* packed, int num_tokens, float* out,
                  ptrdiff_t out_stride, float* scratch) {
    const Tiles tiles;
    const int cols = w[0]->cols;
    PanelRows<W> from;
    for (const Matrix* matrix : w) from.add(*matrix, row0, row1);
    auto* panel = reinterpret_cast<uint8_t*>(scratch);
    float* sums = scratch + kPanelBytes / sizeof(float);
    const auto decode = [&](int col, int group) {
      const int k = col + group * kTileGroup;
      if (k < cols) decode_group(from, k, cols, panel + group * kGroupBytes);
    };
    for (int group = 0; group < kBlock / kTileGroup; ++group) decode(0, group);
    for (int col = 0; col < cols; col += kBlock) {
      const int groups = (smaller(kBlock, cols - col) + kTileGroup - 1) / kTileGroup;
      const float* strip = packed;
      float* c = out;
      for (int left = num_tokens; left > 0; left -= kStrip, strip += padded(cols) * kColumnFloats, c += out_stride) {
        with_places(left, [&](auto count) {
          constexpr int kPlaces = decltype(count)::value;
          multiply_strip<strip_tiles(kPlaces)>(panel, from.num, groups, tile_row<kPlaces>(strip, col), sums, [&](int group) {
            if (left <= kStrip) decode(col + kBlock, group);  // beside the last strip's products
          });
          keep_order();
          add_sums(sums, from, col, c);
          if (col + kBlock >= cols) join_terms<kPlaces>(from.num, c);
        });
      }
    }
  }

 private:
  static constexpr int kQuad = 4;  // columns of two pairs, wherever both begin

  // Where column k and the one that is its pair lie in a strip: in its first tile for these weights.
  template <int Places>
  static KERNEL_INLINE const uint8_t* tile_row(const float* strip, int k) {
    const int tile = k / kTileGroup * 2 + G::half(k % kTileGroup);
    return reinterpret_cast<const uint8_t*>(strip) + tile * strip_tiles(Places) * kTileSize + G::row(k % kTileGroup) * kTileRowBytes;
  }
  template <int Places>
  static KERNEL_INLINE uint8_t* tile_row(float* strip, int k) { return const_cast<uint8_t*>(tile_row<Places>(const_cast<const float*>(strip), k)); }

  // Column k and those behind it.
  template <int Places, int Num>
  static KERNEL_INLINE void store_columns(const Vec (&columns)[Num], int k, float* out) {
    KERNEL_UNROLL for (int i = 0; i < Num; ++i) {
      if (i / G::kPair % 2 == 0) store_places<Places>(columns[i], columns[i + G::kPair], tile_row<Places>(out, k + i));
    }
  }

  // Column k alone, where somebody else has the other one of its pair.
  template <int Places>
  static void store_single(Vec column, int k, float* out) {
    const bool is_second = k / G::kPair % 2 == 1;
    uint8_t rows[kTermTiles];
    store_places<Places>(is_second ? zeros() : column, is_second ? column : zeros(), rows);
    const int pair = is_second ? k - G::kPair : k;
    uint8_t* at = tile_row<Places>(out, pair);
    for (int tile = 0; tile < strip_tiles(Places); ++tile) {
      for (int i = is_second ? 2 : 0; i < kTileRowBytes; i += 4) __builtin_memcpy(at + tile * kTileSize + i, rows + tile * kTileSize + i, 2);
    }
  }

  // Lane i has what lane i % Places had.
  template <int Places>
  static KERNEL_INLINE Vec repeated(Vec x) {
    if constexpr (Places == kStrip) return x;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5 % Places, 6 % Places, 7 % Places, 8 % Places, 9 % Places, 10 % Places,
                                            11 % Places, 12 % Places, 13 % Places, 14 % Places, 15 % Places);
    return {_mm512_permutexvar_ps(lanes, x.v)};
  }

  // Columns [k, k + 64) of all rows.
  static KERNEL_INLINE void decode_group(const PanelRows<W>& from, int k, int cols, uint8_t* at) {
    int r = 0;
    for (; r + 2 <= from.num && k + kTileGroup <= cols; r += 2) decode_rows<2>(from.row[r] + k, from.row[r + 1] - from.row[r], at + r * kTileRowBytes);
    for (; r < from.num; ++r) {
      if (k + kTileGroup <= cols) {
        decode_rows<1>(from.row[r] + k, 0, at + r * kTileRowBytes);
      } else {
        __m512i values[2];
        G::load_part(from.row[r] + k, cols - k, values);
        store_row(values, at + r * kTileRowBytes);
      }
    }
  }

  // Those of some rows, while what comes three groups later comes into L1: 48 streams are more than hardware follows. Two
  // and four groups, which ask for both lines of a pair at a time, were slower by 4 to 15 %.
  template <int Rows>
  static KERNEL_INLINE void decode_rows(const typename W::Element* p, ptrdiff_t stride, uint8_t* at) {
    constexpr int kLineElements = kLine / static_cast<int>(sizeof *p);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      KERNEL_UNROLL for (int i = 0; i < kTileGroup; i += kLineElements) prefetch(p + r * stride + 3 * kTileGroup + i);
    }
    __m512i values[Rows][2];
    G::load(p, stride, values);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) store_row(values[r], at + r * kTileRowBytes);
  }

  static KERNEL_INLINE void store_row(const __m512i (&values)[2], uint8_t* at) {
    _mm512_storeu_si512(at, values[0]);
    _mm512_storeu_si512(at + kGroupBytes / 2, values[1]);
  }

  template <int StripTiles, class Beside>
  static KERNEL_INLINE void multiply_strip(const uint8_t* panel, int rows, int groups, const uint8_t* strip, float* sums, Beside beside) {
    with_count<kPanelRowTiles>((rows + kTileRows - 1) / kTileRows, [&](auto count) {
      multiply_tiles<decltype(count)::value, StripTiles>(panel, groups, strip, sums, beside);
    });
  }

  // c (+)= the sums of a panel's columns from `col` on, times their rows' scales.
  static KERNEL_INLINE void add_sums(const float* sums, const PanelRows<W>& from, int col, float* c) {
    int at = 0;
    for (int i = 0; i < from.num_spans; ++i) {
      const Vec factor = splat((W::kHasScales ? from.spans[i].scales[col / kBlock] : 1.0f) * G::kUnit);
      const int end = from.spans[i].end * kStrip;
      if (col == 0) {
        for (; at < end; at += kStrip) store(c + at, load(sums + at) * factor);
      } else {
        for (; at < end; at += kStrip) store(c + at, fma(load(sums + at), factor, load(c + at)));
      }
    }
    keep_order();
  }

  // The sums of a token's terms to its first place, zeros behind all tokens'.
  template <int Places>
  static void join_terms(int rows, float* c) {
    if constexpr (Places == kStrip) return;
    for (float* end = c + rows * kStrip; c < end; c += kStrip) {
      const Vec terms = load(c);
      Vec sum = terms;
      for (int at = Places; at + Places <= kStrip; at += Places) {
        sum = sum + Vec{_mm512_maskz_compress_ps(lanes_from(at), terms.v)};
      }
      store(c, {_mm512_maskz_mov_ps(static_cast<__mmask16>(~lanes_from(Places)), sum.v)});
    }
  }
};

template <>
struct Gemm<Fp8Weights> : GemmInTiles<Fp8Weights> {};
template <>
struct Gemm<Bf16Weights> : GemmInTiles<Bf16Weights> {};

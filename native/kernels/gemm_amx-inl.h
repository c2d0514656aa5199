// gemm's products in AMX, for weights that BF16 holds exactly: a panel of weights as tiles, then strip by strip 16 rows times
// 16 tokens. A strip has, of each 64 columns, the tiles that go with the first and the last halves of load_group, each three
// times, for the terms of the activations: [16 pairs of columns][16 tokens][2] BF16.

template <class W>
struct Gemm;

constexpr int kPanelRows = 48;                  // three tiles of sums: as many as each of a strip's tiles is loaded for
constexpr int kPanelRowTiles = kPanelRows / kTileRows;
constexpr int kPanelBytes = kBlock / kTileGroup * 2 * kPanelRowTiles * kTileSize;

// Where columns k and k + 1 lie in a strip, k even: the first terms of 16 tokens; each next term is a tile behind.
KERNEL_INLINE uint8_t* operand_row(float* strip, int k) {
  const int eighth = k % kTileGroup / 8;
  const int row = eighth / 2 * 4 + k % 8 / 2;
  return reinterpret_cast<uint8_t*>(strip) + (k / kTileGroup * 2 + eighth % 2) * kTermTiles + row * kTileRowBytes;
}

// Columns k and k + 1 of 16 tokens.
KERNEL_INLINE void store_pair(float* strip, int k, Vec even, Vec odd) {
  store_terms(even, odd, operand_row(strip, k));
}

// Column k alone, where somebody else has the other one of its pair.
void store_single(float* strip, int k, const float* tokens) {
  uint8_t* at = operand_row(strip, k - k % 2) + k % 2 * 2;
  float left[kStrip];
  store(left, load(tokens));
  for (int term = 0; term < kTerms; ++term, at += kTileSize) {
    uint32_t parts[kStrip];
    store(reinterpret_cast<float*>(parts), bf16_part(load(left)));
    for (int t = 0; t < kStrip; ++t) {
      const auto word = static_cast<uint16_t>(parts[t] >> 16);
      __builtin_memcpy(at + t * 4, &word, sizeof word);
    }
    store(left, load(left) - bf16_part(load(left)));
  }
}

// sums[row][token] of one strip: a panel of `tiles` tiles of 32 columns times the strip's part of it.
template <int RowTiles>
KERNEL_INLINE void multiply_tiles(const uint8_t* panel, int tiles, const uint8_t* strip, float* sums) {
  _tile_zero(0);
  if constexpr (RowTiles > 1) _tile_zero(1);
  if constexpr (RowTiles > 2) _tile_zero(2);
  for (int i = 0; i < tiles; ++i, panel += kPanelRowTiles * kTileSize) {
    _tile_loadd(3, panel, kTileRowBytes);
    if constexpr (RowTiles > 1) _tile_loadd(4, panel + kTileSize, kTileRowBytes);
    if constexpr (RowTiles > 2) _tile_loadd(5, panel + 2 * kTileSize, kTileRowBytes);
    for (int term = 0; term < kTerms; ++term, strip += kTileSize) {
      _tile_loadd(6, strip, kTileRowBytes);
      _tile_dpbf16ps(0, 3, 6);
      if constexpr (RowTiles > 1) _tile_dpbf16ps(1, 4, 6);
      if constexpr (RowTiles > 2) _tile_dpbf16ps(2, 5, 6);
    }
  }
  _tile_stored(0, sums, kTileRowBytes);
  if constexpr (RowTiles > 1) _tile_stored(1, sums + kTileRows * kStrip, kTileRowBytes);
  if constexpr (RowTiles > 2) _tile_stored(2, sums + 2 * kTileRows * kStrip, kTileRowBytes);
}

template <class W>
struct GemmInTiles {
  static constexpr int kColumnFloats = kTerms * kStrip / 2;
  static constexpr int kKeptBytes = 3 << 19;  // of L2's 2 MB
  static constexpr size_t kScratchFloats = kPanelBytes / sizeof(float) + static_cast<size_t>(kPanelRows) * kStrip;

  static void pack(const float* const* x, int num_tokens, int cols, float* out) {
    int k = 0;
    for (; k + kLanes <= cols; k += kLanes) {
      Vec square[kLanes];
      KERNEL_UNROLL for (int t = 0; t < kLanes; ++t) square[t] = t < num_tokens ? load(x[t] + k) : zeros();
      transpose(square);
      KERNEL_UNROLL for (int i = 0; i < kLanes; i += 2) store_pair(out, k + i, square[i], square[i + 1]);
    }
    for (; k < padded(cols); k += 2) {
      float pair[2][kStrip] = {};
      for (int i = 0; i < 2; ++i) {
        for (int t = 0; t < num_tokens && k + i < cols; ++t) pair[i][t] = x[t][k + i];
      }
      store_pair(out, k, load(pair[0]), load(pair[1]));
    }
  }

  static void pack_product(const float* c, int rows, int row0, int cols, float* out) {
    int r = 0;
    if (row0 % 2 == 1) store_single(out, row0, c + kStrip * r++);
    for (; r + 2 <= rows; r += 2) store_pair(out, row0 + r, load(c + r * kStrip), load(c + (r + 1) * kStrip));
    if (r < rows) store_single(out, row0 + r, c + r * kStrip);
    if (row0 + rows < cols) return;
    const float none[kStrip] = {};
    int k = cols;
    if (k % 2 == 1) store_single(out, k++, none);
    for (; k < padded(cols); k += 2) store_pair(out, k, zeros(), zeros());
  }

  template <int Matrices>
  static void run(const Matrix* const (&w)[Matrices], int row0, int row1, const float* packed, int num_tokens, float* out,
                  ptrdiff_t out_stride, float* scratch) {
    const Tiles tiles;
    const int cols = w[0]->cols;
    const int n = row1 - row0;
    auto* panel = reinterpret_cast<uint8_t*>(scratch);
    float* sums = scratch + kPanelBytes / sizeof(float);
    float scales[kPanelRows];
    const char* next[kPanelRows];
    for (int col = 0; col < cols; col += kBlock) {
      const int width = smaller(kBlock, cols - col);
      for (int m = 0; m < Matrices; ++m) decode_panel(*w[m], row0, n, col, width, m * n, panel, scales, next);
      keep_order();
      const float* strip = packed + static_cast<ptrdiff_t>(col) * kColumnFloats;
      float* c = out;
      int asked = 0;
      for (int t = 0; t < num_tokens; t += kStrip, strip += padded(cols) * kColumnFloats, c += out_stride) {
        multiply_strip(panel, n * Matrices, width, reinterpret_cast<const uint8_t*>(strip), sums);
        for (const int end = n * Matrices * smaller(t + kStrip, num_tokens) / num_tokens; asked < end; ++asked) ask(next[asked]);
        keep_order();
        add_sums(sums, scales, n * Matrices, col > 0, c);
      }
    }
  }

 private:
  // Columns [col, col + width) of n rows to the panel's rows from `first` on, their scales, and where the next ones lie.
  static void decode_panel(const Matrix& w, int row0, int n, int col, int width, int first, uint8_t* panel, float* scales,
                           const char** next) {
    for (int r = 0; r < n; ++r) {
      const int at = first + r;
      const typename W::Element* p = row_of<W>(w, row0 + r) + col;
      decode_row(p, width, panel + at / kTileRows * kTileSize + at % kTileRows * kTileRowBytes);
      scales[at] = block_scale(w, row0 + r, col);
      next[at] = reinterpret_cast<const char*>(p + kBlock);
    }
  }

  static KERNEL_INLINE void decode_row(const typename W::Element* p, int width, uint8_t* at) {
    for (int k = 0; k < width; k += kTileGroup, at += 2 * kPanelRowTiles * kTileSize) {
      __m512i first, last;
      if (width - k >= kTileGroup) {
        load_group(p + k, first, last);
      } else {
        load_group(p + k, width - k, first, last);
      }
      _mm512_storeu_si512(at, first);
      _mm512_storeu_si512(at + kPanelRowTiles * kTileSize, last);
    }
  }

  static KERNEL_INLINE void multiply_strip(const uint8_t* panel, int rows, int width, const uint8_t* strip, float* sums) {
    const int tiles = (width + kTileGroup - 1) / kTileGroup * 2;
    with_count<kPanelRowTiles>((rows + kTileRows - 1) / kTileRows, [&](auto count) {
      multiply_tiles<decltype(count)::value>(panel, tiles, strip, sums);
    });
  }

  // A row's part of the next panel comes closer. While tiles are multiplied: all rows' at once would fill the buffers between
  // memory and L1, and decoding would wait.
  static KERNEL_INLINE void ask(const char* p) {
    constexpr int kBytes = kBlock * static_cast<int>(sizeof(typename W::Element));
    KERNEL_UNROLL for (int i = 0; i < kBytes; i += kLine) prefetch(p + i);
  }

  static KERNEL_INLINE void add_sums(const float* sums, const float* scales, int rows, bool accumulate, float* c) {
    for (int r = 0; r < rows; ++r) {
      const Vec scaled = load(sums + r * kStrip) * splat(scales[r]);
      store(c + r * kStrip, accumulate ? load(c + r * kStrip) + scaled : scaled);
    }
    keep_order();
  }
};

template <>
struct Gemm<Fp8Weights> : GemmInTiles<Fp8Weights> {};
template <>
struct Gemm<Bf16Weights> : GemmInTiles<Bf16Weights> {};

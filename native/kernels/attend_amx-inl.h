// Decode attention in the latent space in AMX: 32 keys, and then 32 columns of values, times one or two strips of heads.
//
// Scores: rows of the left tiles are keys, columns of the right ones heads. Sums: rows are heads, columns those of values. FP32
// goes as three BF16 terms on both sides, and of their nine products the six largest count: what is left out is below
// FP32's own rounding. A BF16 cache is one term, and its keys are read as they lie.

constexpr int kTileCols = 32;                              // columns of a left tile
constexpr int kScorePanel = 192;                           // columns summed up in tiles: fewer roundings of large sums
constexpr int kPageSize = kPage / kTileCols * kTermTiles;  // bytes of a strip's probabilities

// One or two tiles of a factor, the second one `apart` bytes behind; the tiles of each next term kTileSize behind.
struct Factor {
  const uint8_t* at;
  ptrdiff_t apart;
  ptrdiff_t row_bytes;
};

size_t head_strip_floats(int width) { return static_cast<size_t>((width + kTileCols - 1) / kTileCols) * (kTermTiles / sizeof(float)); }

// Of `count` elements from p on as many as a vector holds; none where count <= 0.
KERNEL_INLINE Vec load_first(const float* p, int count) { return load(p, Part{smaller(count > 0 ? count : 0, kLanes)}); }
KERNEL_INLINE Vec load_first(const uint16_t* p, int count) { return load_bf16(p, Part{smaller(count > 0 ? count : 0, kLanes)}); }

using TileSums = float[kTileRows * kStrip];

KERNEL_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// sums[2 * left + right].
template <int Lefts, int Rights>
KERNEL_INLINE void store_sums(TileSums (&sums)[4]) {
  _tile_stored(0, sums[0], kTileRowBytes);
  if constexpr (Rights > 1) _tile_stored(1, sums[1], kTileRowBytes);
  if constexpr (Lefts > 1) _tile_stored(2, sums[2], kTileRowBytes);
  if constexpr (Lefts > 1 && Rights > 1) _tile_stored(3, sums[3], kTileRowBytes);
  keep_order();
}

// Products of that many terms on each side that count.
constexpr int products_of(int left_terms, int right_terms) { return left_terms * right_terms == kTerms * kTerms ? 6 : left_terms * right_terms; }

// Rows [from, to) of those that a step needs.
template <int From, int To>
struct Range {
  static constexpr int from = From, to = To;
};

// Tiles 0 and 1 += left 4 times right 6 and 7; tiles 2 and 3 += left 5 times those. After each product between(range) does
// what the vectors have to do meanwhile, for Rows rows in all: a core does not look far enough ahead to find it.
template <int Lefts, int Rights, int LeftTerms, int RightTerms, int Rows, int Product = 0, int I = 0, int J = 0, class Between>
KERNEL_INLINE void multiply_terms(const Factor& left, const Factor& right, Between between) {
  constexpr int kProducts = products_of(LeftTerms, RightTerms);
  if constexpr (J == 0) {
    _tile_loadd(4, left.at + I * kTileSize, left.row_bytes);
    if constexpr (Lefts > 1) _tile_loadd(5, left.at + left.apart + I * kTileSize, left.row_bytes);
  }
  _tile_loadd(6, right.at + J * kTileSize, right.row_bytes);
  if constexpr (Rights > 1) _tile_loadd(7, right.at + right.apart + J * kTileSize, right.row_bytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (Rights > 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (Lefts > 1) _tile_dpbf16ps(2, 5, 6);
  if constexpr (Lefts > 1 && Rights > 1) _tile_dpbf16ps(3, 5, 7);
  between(Range<Product * Rows / kProducts, (Product + 1) * Rows / kProducts>{});
  if constexpr (J + 1 < smaller(RightTerms, kTerms - I)) {
    multiply_terms<Lefts, Rights, LeftTerms, RightTerms, Rows, Product + 1, I, J + 1>(left, right, between);
  } else if constexpr (I + 1 < LeftTerms) {
    multiply_terms<Lefts, Rights, LeftTerms, RightTerms, Rows, Product + 1, I + 1, 0>(left, right, between);
  }
}

// Rows of a page become one side's tiles: those of the step to come, range by range, while the current one's are multiplied.

// Columns [k, k + 32) of 32 keys, `count` of them there; of FP32 a key's columns i and i + 16 side by side.
template <class Rows>
KERNEL_INLINE void lay_out_keys(Rows, const float* p, ptrdiff_t width, int count, uint8_t* room, Ahead& ahead) {
  ahead.ask<Rows::to - Rows::from>();
  if (count >= kTileCols) {
    KERNEL_UNROLL for (int j = Rows::from; j < Rows::to; ++j) {
      const float* row = p + j * width;
      store_terms(load(row), load(row + kLanes), room + j / kTileRows * kTermTiles + j % kTileRows * kTileRowBytes);
    }
    return;
  }
  for (int j = Rows::from; j < Rows::to; ++j) {
    const float* row = p + j * width;
    store_terms(load_first(row, count), load_first(row + kLanes, count - kLanes),
                room + j / kTileRows * kTermTiles + j % kTileRows * kTileRowBytes);
  }
}

template <class Rows>
KERNEL_INLINE void lay_out_keys(Rows, const uint16_t* p, ptrdiff_t width, int count, uint8_t* room, Ahead& ahead) {
  ahead.ask<(Rows::to - Rows::from) / 2>();
  if (count >= kTileCols) return;  // they are read as they lie
  for (int j = Rows::from; j < Rows::to; ++j) {
    uint8_t* at = room + j / kTileRows * kTermTiles + j % kTileRows * kTileRowBytes;
    _mm512_storeu_si512(at, _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, p + j * width));
  }
}

KERNEL_INLINE Factor laid_out_keys(const float*, ptrdiff_t, int, const uint8_t* room) { return {room, kTermTiles, kTileRowBytes}; }
KERNEL_INLINE Factor laid_out_keys(const uint16_t* p, ptrdiff_t width, int count, const uint8_t* room) {
  if (count < kTileCols) return {room, kTermTiles, kTileRowBytes};
  const ptrdiff_t row_bytes = width * static_cast<ptrdiff_t>(sizeof *p);
  return {reinterpret_cast<const uint8_t*>(p), kTileRows * row_bytes, row_bytes};
}

// A row of a right tile: the values of two keys side by side.
KERNEL_INLINE void store_values(Vec x, Vec y, const float*, uint8_t* at) { store_terms(x, y, at); }
KERNEL_INLINE void store_values(Vec x, Vec y, const uint16_t*, uint8_t* at) { _mm512_storeu_si512(at, pair_bf16(x, y)); }
KERNEL_INLINE Vec load_values(const float* p) { return load(p); }
KERNEL_INLINE Vec load_values(const uint16_t* p) { return load_bf16(p); }

// 32 columns, `count` of them there, of 32 keys, `num` of them there; those of keys i and i + 16 side by side.
template <class Rows, class Element>
KERNEL_INLINE void lay_out_values(Rows, const Element* p, ptrdiff_t width, int num, int count, uint8_t* room, Ahead& ahead) {
  ahead.ask<(Rows::to - Rows::from) * static_cast<int>(sizeof(Element)) * 3 / 4>();
  if (num >= kTileCols && count >= kTileCols) {
    KERNEL_UNROLL for (int i = 2 * Rows::from; i < 2 * Rows::to; ++i) {
      const Element* first = p + i / 2 * width + i % 2 * kLanes;
      store_values(load_values(first), load_values(first + kTileRows * width), p, room + i / 2 * kTileRowBytes + i % 2 * kTermTiles);
    }
    return;
  }
  for (int i = 2 * Rows::from; i < 2 * Rows::to; ++i) {
    const Element* first = p + i / 2 * width + i % 2 * kLanes;
    const int columns = count - i % 2 * kLanes;
    const Vec x = load_first(first, i / 2 < num ? columns : 0);
    const Vec y = load_first(first + kTileRows * width, i / 2 + kTileRows < num ? columns : 0);
    store_values(x, y, p, room + i / 2 * kTileRowBytes + i % 2 * kTermTiles);
  }
}

// scores[strip][key][16 heads].
template <int Strips, class Element>
void score_keys(const LatentBlock& job, const Element* rows, float* scores, uint8_t (&rooms)[2][2 * kTermTiles], Ahead& ahead) {
  constexpr int kKeyTerms = sizeof(Element) == 2 ? 1 : kTerms;
  const int num = job.num;
  const int width = job.rank + job.rope;
  const int steps = (width + kTileCols - 1) / kTileCols;
  const int total = (num + kTileCols - 1) / kTileCols * steps;
  const auto strip_bytes = static_cast<ptrdiff_t>(head_strip_floats(width) * sizeof(float));
  const auto* q = reinterpret_cast<const uint8_t*>(job.q);
  alignas(64) TileSums sums[4];
  const auto lay_out = [&](int step, auto range) KERNEL_INLINED {
    const int key = step / steps * kTileCols;
    const int k = step % steps * kTileCols;
    lay_out_keys(range, rows + static_cast<ptrdiff_t>(key) * width + k, width, width - k, rooms[step % 2], ahead);
  };
  lay_out(0, Range<0, kTileCols>{});
  for (int step = 0; step < total; ++step) {
    const int key = step / steps * kTileCols;
    const int k = step % steps * kTileCols;
    if (k % kScorePanel == 0) zero_sums();
    const Factor keys = laid_out_keys(rows + static_cast<ptrdiff_t>(key) * width + k, width, width - k, rooms[step % 2]);
    keep_order();
    const Factor heads{q + step % steps * kTermTiles, strip_bytes, kTileRowBytes};
    multiply_terms<2, Strips, kKeyTerms, kTerms, kTileCols>(keys, heads, [&](auto range) KERNEL_INLINED {
      if (step + 1 < total) lay_out(step + 1, range);
    });
    if (k + kTileCols < width && (k + kTileCols) % kScorePanel != 0) continue;
    store_sums<2, Strips>(sums);
    KERNEL_UNROLL for (int i = 0; i < 2 * Strips; ++i) {
      float* at = scores + (i % Strips * kPage + key + i / Strips * kTileRows) * kStrip;
      const TileSums& panel = sums[i / Strips * 2 + i % Strips];
      for (int e = 0; e < kTileRows * kStrip; e += kLanes) store(at + e, k < kScorePanel ? load(panel + e) : load(at + e) + load(panel + e));
    }
  }
}

// A strip's probabilities as left tiles: heads in rows, keys i and i + 16 side by side.
void pack_probabilities(const float* p, int num, uint8_t* out) {
  for (int key = 0; key < num; key += kTileCols, out += kTermTiles) {
    Vec first[kLanes], last[kLanes];
    KERNEL_UNROLL for (int i = 0; i < kLanes; ++i) {
      first[i] = key + i < num ? load(p + (key + i) * kStrip) : zeros();
      last[i] = key + i + kLanes < num ? load(p + (key + i + kLanes) * kStrip) : zeros();
    }
    transpose(first);
    transpose(last);
    KERNEL_UNROLL for (int h = 0; h < kLanes; ++h) store_terms(first[h], last[h], out + h * kTileRowBytes);
  }
}

// acc[h][0..n) = acc[h][0..n) * factors[h] + sums, for n <= 32 columns.
KERNEL_INLINE void add_sums(const TileSums* sums, int heads, const float* factors, float* acc, ptrdiff_t stride, int n) {
  for (int h = 0; h < heads; ++h, acc += stride) {
    const Vec factor = splat(factors[h]);
    KERNEL_UNROLL for (int c = 0; c < 2; ++c) {
      const Vec sum = load(sums[c] + h * kStrip);
      float* at = acc + c * kLanes;
      if (n >= kTileCols) {
        store(at, fma(load(at), factor, sum));
      } else if (n > c * kLanes) {
        const Part part{smaller(kLanes, n - c * kLanes)};
        store(at, fma(load(at, part), factor, sum), part);
      }
    }
  }
}

// acc[h][0..rank) = acc[h][0..rank) * factors[h] + sum over keys of p[h][key] * rows[key][0..rank).
template <int Strips, class Element>
void add_values(const LatentBlock& job, const Element* rows, const uint8_t* p, const float* factors, uint8_t (&rooms)[2][2 * kTermTiles],
                Ahead& ahead) {
  constexpr int kValueTerms = sizeof(Element) == 2 ? 1 : kTerms;
  const int num = job.num;
  const int rank = job.rank;
  const ptrdiff_t width = rank + job.rope;
  const int steps = (num + kTileCols - 1) / kTileCols;
  const int total = (rank + kTileCols - 1) / kTileCols * steps;
  alignas(64) TileSums sums[4];
  const auto lay_out = [&](int step, auto range) KERNEL_INLINED {
    const int key = step % steps * kTileCols;
    const int col = step / steps * kTileCols;
    lay_out_values(range, rows + key * width + col, width, num - key, rank - col, rooms[step % 2], ahead);
  };
  lay_out(0, Range<0, kTileRows>{});
  for (int step = 0; step < total; ++step) {
    if (step % steps == 0) zero_sums();
    keep_order();
    const Factor weights{p + step % steps * kTermTiles, kPageSize, kTileRowBytes};
    const Factor values{rooms[step % 2], kTermTiles, kTileRowBytes};
    multiply_terms<Strips, 2, kTerms, kValueTerms, kTileRows>(weights, values, [&](auto range) KERNEL_INLINED {
      if (step + 1 < total) lay_out(step + 1, range);
    });
    if ((step + 1) % steps != 0) continue;
    store_sums<Strips, 2>(sums);
    const int col = step / steps * kTileCols;
    for (int strip = 0; strip < Strips; ++strip) {
      const ptrdiff_t h = strip * kStrip;
      add_sums(&sums[2 * strip], smaller(kStrip, job.heads - strip * kStrip), factors + h, job.state.acc + h * rank + col, rank, rank - col);
    }
  }
}

template <int Strips, class Element>
void attend_strips(const LatentBlock& job, const Element* rows) {
  const Tiles tiles;
  alignas(64) uint8_t rooms[2][2 * kTermTiles];
  alignas(64) uint8_t p[Strips * kPageSize];
  alignas(64) float scores[Strips * kPage * kStrip];
  float factors[Strips * kStrip] = {};
  Ahead ahead(job);
  score_keys<Strips>(job, rows, scores, rooms, ahead);
  for (int s = 0; s < Strips; ++s) {
    const int h = s * kStrip;
    softmax_heads<1>(scores + h * kPage, job.num, job.softmax_scale, job.state.m + h, job.state.l + h, factors + h);
    pack_probabilities(scores + h * kPage, job.num, p + s * kPageSize);
  }
  keep_order();
  add_values<Strips>(job, rows, p, factors, rooms, ahead);
}

// Columns in the order of lay_out_keys().
void pack_heads(const float* const* q, int num_heads, int width, bool bf16, float* out) {
  auto* at = reinterpret_cast<uint8_t*>(out);
  for (int k = 0; k < width; k += kTileCols, at += kTermTiles) {
    Vec columns[2][kLanes];
    KERNEL_UNROLL for (int half = 0; half < 2; ++half) {
      const int count = width - k - half * kLanes;
      KERNEL_UNROLL for (int h = 0; h < kLanes; ++h) {
        columns[half][h] = h < num_heads ? load_first(q[h] + k + half * kLanes, count) : zeros();
      }
      transpose(columns[half]);
    }
    KERNEL_UNROLL for (int i = 0; i < kLanes; ++i) {
      const Vec even = columns[i / (kLanes / 2)][2 * i % kLanes];
      const Vec odd = columns[i / (kLanes / 2)][(2 * i + 1) % kLanes];
      store_terms(bf16 ? even : columns[0][i], bf16 ? odd : columns[1][i], at + i * kTileRowBytes);
    }
  }
}

void attend_latent(const LatentBlock& job) {
  const bool few = job.heads <= kStrip;
  if (job.bf16) {
    const auto* rows = static_cast<const uint16_t*>(job.rows);
    return few ? attend_strips<1>(job, rows) : attend_strips<2>(job, rows);
  }
  const auto* rows = static_cast<const float*>(job.rows);
  few ? attend_strips<1>(job, rows) : attend_strips<2>(job, rows);
}

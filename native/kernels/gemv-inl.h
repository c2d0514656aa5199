// y[t][row] for 1..8 tokens: bound by reading the weights, so each is read and decoded once for all tokens.
//
// A few rows go side by side, as many as leave the sums in registers, and far apart: hardware prefetchers follow one
// stream per page, and four streams kept 13 GB/s coming where one kept 9 (one Xeon core). A row's own
// arithmetic is the same however rows are grouped, so results do not depend on how they are shared out.

constexpr int kPrefetchBytes = 1024;     // ahead in each stream
constexpr int kOperandBytes = 16 << 10;  // of activations that are read again and again: half of L1

// How gemv reads activations and weights of type W, and multiplies: by FMA. A target that has something better
// specialises this in a file before this one.
template <class W>
struct Products {
  using Weights = Vec;
  using Operand = Vec;
  static constexpr int kStep = kGroup;   // columns decoded together
  static constexpr int kWidth = kLanes;  // columns in one Weights
  static constexpr int kParts = 2;       // in which they are decoded: fewer registers than for all at once
  // 32 activations as load_operand() reads them, in the room of 32 floats.
  static KERNEL_INLINE void prepare(const float* x, float* out) {
    KERNEL_UNROLL for (int i = 0; i < kGroup; ++i) out[i] = x[W::order(i)] * W::kOperandUnit;
  }
  static KERNEL_INLINE Operand load_operand(const float* x) { return load(x); }
  static KERNEL_INLINE void load_part(const typename W::Element* p, int part, Vec (&out)[kHalfVecs]) {
    W::load_half(p, part * kHalfVecs, out);
  }
  static KERNEL_INLINE Vec add(Vec weights, Vec x, Vec sum) { return fma(weights, x, sum); }
};

void gemv_prepare(const float* x, int n, WeightType type, float* out) {
  with_weights(type, [&](auto weights) {
    using P = Products<decltype(weights)>;
    int k = 0;
    for (; k + kGroup <= n; k += kGroup) P::prepare(x + k, out + k);
    if (k == n) return;
    float tail[kGroup] = {};
    __builtin_memcpy(tail, x + k, static_cast<size_t>(n - k) * sizeof *x);
    P::prepare(tail, out + k);
  });
}

template <int Rows, int Tokens>
struct Sums {
  Vec of[Rows][Tokens];
};

template <int Rows, int Tokens>
KERNEL_INLINE void clear(Sums<Rows, Tokens>& sums) {
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) sums.of[r][t] = zeros();
  }
}

// Sums of a block: two for each row and token where there would be too few chains of FMAs to hide their latency. A row
// has as many when it is alone, so that its own sum is the same.
template <int Rows, int Tokens>
struct BlockSums {
  static constexpr int kChains = kGemvRows[Tokens - 1] * Tokens <= kGemvChains / 2 ? 2 : 1;
  Sums<Rows, Tokens> chain[kChains];

  KERNEL_INLINE Vec of(int r, int t) const {
    return kChains == 2 ? chain[0].of[r][t] + chain[kChains - 1].of[r][t] : chain[0].of[r][t];
  }
};

template <int Rows, int Tokens>
KERNEL_INLINE void clear(BlockSums<Rows, Tokens>& sums) {
  KERNEL_UNROLL for (int c = 0; c < sums.kChains; ++c) clear(sums.chain[c]);
}

// sums += a part of a group, the activations of the few tokens in registers.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_part_by_rows(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                                    const float* const* x, int k, int part) {
  using P = Products<W>;
  constexpr int kVecs = Columns / P::kWidth / P::kParts;
  typename P::Operand right[Tokens][kVecs];
  KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
    KERNEL_UNROLL for (int i = 0; i < kVecs; ++i) {
      right[t][i] = P::load_operand(x[t] + k + (part * kVecs + i) * P::kWidth);
    }
  }
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    typename P::Weights weights[kVecs];
    P::load_part(p + r * stride, part, weights);
    KERNEL_UNROLL for (int i = 0; i < kVecs; ++i) {
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
        Vec& sum = sums.chain[i % sums.kChains].of[r][t];
        sum = P::add(weights[i], right[t][i], sum);
      }
    }
  }
}

// The same with the weights of the few rows in registers.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_part_by_tokens(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                                      const float* const* x, int k, int part) {
  using P = Products<W>;
  constexpr int kVecs = Columns / P::kWidth / P::kParts;
  typename P::Weights weights[Rows][kVecs];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) P::load_part(p + r * stride, part, weights[r]);
  KERNEL_UNROLL for (int i = 0; i < kVecs; ++i) {
    KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
      const typename P::Operand right = P::load_operand(x[t] + k + (part * kVecs + i) * P::kWidth);
      KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
        Vec& sum = sums.chain[i % sums.kChains].of[r][t];
        sum = P::add(weights[r][i], right, sum);
      }
    }
  }
}

// sums += a group of columns; row r of the weights is at p + r * stride, the activations at x[t] + k.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_group(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k) {
  KERNEL_UNROLL for (int part = 0; part < Products<W>::kParts; ++part) {
    if constexpr (Tokens * sizeof(typename Products<W>::Operand) <= Rows * sizeof(typename Products<W>::Weights)) {
      add_part_by_rows<W, Columns>(sums, p, stride, x, k, part);
    } else {
      add_part_by_tokens<W, Columns>(sums, p, stride, x, k, part);
    }
    keep_order();
  }
}

// sums += the last n < 32 columns. They are copied, because nothing may be read past the last row's end.
template <class W, int Rows, int Tokens>
void add_tail(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride, int n,
              const float* const* x, int k) {
  typename W::Element group[Rows][kGroup] = {};
  for (int r = 0; r < Rows; ++r) __builtin_memcpy(group[r], p + r * stride, static_cast<size_t>(n) * sizeof *p);
  add_group<W, kGroup>(sums, group[0], kGroup, x, k);
}

// sums += a block of 128 columns; what lies `ahead` comes closer meanwhile.
template <class W, int Rows, int Tokens>
KERNEL_INLINE void add_block(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k, ptrdiff_t ahead) {
  constexpr int kLineElements = kLine / static_cast<int>(sizeof(typename W::Element));
  KERNEL_UNROLL for (int i = 0; i < kBlock; i += Products<W>::kStep) {
    if (i % kLineElements == 0) {
      KERNEL_UNROLL for (int r = 0; r < Rows; ++r) prefetch(p + r * stride + i + ahead);
    }
    add_group<W, Products<W>::kStep>(sums, p + i, stride, x, k + i);
  }
}

// sums += the last n < 128 columns.
template <class W, int Rows, int Tokens>
void add_part_of_block(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride, int n,
                       const float* const* x, int k) {
  int i = 0;
  for (; i + kGroup <= n; i += kGroup) add_group<W, kGroup>(sums, p + i, stride, x, k + i);
  if (i < n) add_tail<W>(sums, p + i, stride, n - i, x, k + i);
}

// total += the block's sums, each times its scale.
template <int Rows, int Tokens>
KERNEL_INLINE void add_scaled_sums(Sums<Rows, Tokens>& total, const BlockSums<Rows, Tokens>& sums,
                                   const float* const (&scales)[Rows], int block) {
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    const Vec scale = splat(scales[r] == nullptr ? 1.0f : scales[r][block / kBlock]);
    KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) total.of[r][t] = fma(sums.of(r, t), scale, total.of[r][t]);
  }
}

// Columns [from, to) of rows row, row + step, ...: `Rows` streams far apart, each of which goes straight through memory
// as row counts up. Adds to y unless they are the first columns.
template <class W, int Rows, int Tokens>
void gemv_rows(const Matrix& w, int row, int step, int from, int to, const float* const* tokens, float* const* y) {
  const float* x[Tokens];
  for (int t = 0; t < Tokens; ++t) x[t] = tokens[t];
  const float* scales[Rows];
  for (int r = 0; r < Rows; ++r) scales[r] = row_scales(w, row + r * step);
  const typename W::Element* p = row_of<W>(w, row);
  const ptrdiff_t stride = static_cast<ptrdiff_t>(w.cols) * step;
  // What comes next in this stream: further columns, or the same ones of the next row.
  const ptrdiff_t ahead = to - from == w.cols ? kPrefetchBytes / static_cast<ptrdiff_t>(sizeof *p) : w.cols;
  Sums<Rows, Tokens> total;
  clear(total);
  for (int k = from; k < to; k += kBlock) {
    BlockSums<Rows, Tokens> sums;
    clear(sums);
    if (k + kBlock <= to) {
      add_block<W>(sums, p + k, stride, x, k, ahead);
    } else {
      add_part_of_block<W>(sums, p + k, stride, to - k, x, k);
    }
    add_scaled_sums(total, sums, scales, k);
  }
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) {
      float& out = y[t][row + r * step];
      out = sum_lanes(total.of[r][t]) * W::kSumUnit + (from > 0 ? out : 0.0f);
    }
  }
}

// Columns that go through all rows before the next ones do, so that the activations of many tokens stay in L1: read from
// L2 again for each row, those of eight tokens take longer than the weights.
constexpr int columns_together(int tokens) { return tokens < 6 ? 1 << 30 : kOperandBytes / 4 / tokens / kBlock * kBlock; }

template <class W, int Tokens>
void gemv_range(const Matrix& w, int row0, int row1, const float* const* x, float* const* y) {
  constexpr int kRows = kGemvRows[Tokens - 1];
  constexpr int kColumns = columns_together(Tokens);
  const int step = (row1 - row0) / kRows;
  for (int from = 0, to = 0; from < w.cols; from = to) {
    to = from + smaller(kColumns, w.cols - from);
    for (int row = row0; row < row0 + step; ++row) gemv_rows<W, kRows, Tokens>(w, row, step, from, to, x, y);
    for (int row = row0 + step * kRows; row < row1; ++row) gemv_rows<W, 1, Tokens>(w, row, 1, from, to, x, y);
  }
}

void gemv(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y) {
  with_weights(w.type, [&](auto weights) {
    using W = decltype(weights);
    with_count<kMaxGemvTokens>(num_tokens, [&](auto count) {
      gemv_range<W, decltype(count)::value>(w, row0, row1, x, y);
    });
  });
}

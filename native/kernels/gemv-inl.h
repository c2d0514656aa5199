// y[t][row] for 1..8 tokens: bound by reading the weights, so each is read and decoded once for all tokens.
//
// A few rows go side by side, as many as leave the sums in registers, and far apart: hardware prefetchers follow one
// stream per page, and four streams kept 13 GB/s coming where one kept 9 (one Xeon core). A row's own
// arithmetic is the same however rows are grouped, so results do not depend on how they are shared out.

constexpr int kPrefetchBytes = 1024;  // ahead in each stream

// How gemv reads activations and weights of type W, and multiplies: by FMA. A target that has something better
// specialises this in a file before this one.
template <class W>
struct Products {
  using Weights = Vec;
  static constexpr int kStep = kGroup;   // columns decoded together
  static constexpr int kWidth = kLanes;  // columns in one Weights
  // 32 activations as add() reads them, in the room of 32 floats.
  static KERNEL_INLINE void prepare(const float* x, float* out) {
    KERNEL_UNROLL for (int i = 0; i < kGroup; ++i) out[i] = x[W::order(i)] * W::kUnit;
  }
  static KERNEL_INLINE void load_group(const typename W::Element* p, Vec (&out)[kGroupVecs]) { W::load_group(p, out); }
  static KERNEL_INLINE Vec add(Vec weights, const float* x, Vec sum) { return fma(weights, load(x), sum); }
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

// sums += a group of columns; row r of the weights is at p + r * stride, the activations at x[t] + k.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_group(Sums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k) {
  using P = Products<W>;
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    typename P::Weights weights[Columns / P::kWidth];
    P::load_group(p + r * stride, weights);
    KERNEL_UNROLL for (int i = 0; i < Columns / P::kWidth; ++i) {
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
        sums.of[r][t] = P::add(weights[i], x[t] + k + i * P::kWidth, sums.of[r][t]);
      }
    }
  }
}

// sums += the last n < 32 columns. They are copied, because nothing may be read past the last row's end.
template <class W, int Rows, int Tokens>
void add_tail(Sums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride, int n, const float* const* x,
              int k) {
  typename W::Element group[Rows][kGroup] = {};
  for (int r = 0; r < Rows; ++r) __builtin_memcpy(group[r], p + r * stride, static_cast<size_t>(n) * sizeof *p);
  add_group<W, kGroup>(sums, group[0], kGroup, x, k);
}

// Rows row, row + step, ...: `Rows` streams far apart, each of which goes straight through memory as row counts up.
template <class W, int Rows, int Tokens>
void gemv_rows(const Matrix& w, int row, int step, const float* const* tokens, float* const* y) {
  constexpr int kLineElements = kLine / static_cast<int>(sizeof(typename W::Element));
  constexpr int kStep = Products<W>::kStep;
  const float* x[Tokens];
  for (int t = 0; t < Tokens; ++t) x[t] = tokens[t];
  const typename W::Element* p = row_of<W>(w, row);
  const ptrdiff_t stride = static_cast<ptrdiff_t>(w.cols) * step;
  Sums<Rows, Tokens> total;
  clear(total);
  for (int block = 0; block < w.cols; block += kBlock) {
    const int end = smaller(block + kBlock, w.cols);
    Sums<Rows, Tokens> sums;
    clear(sums);
    int k = block;
    for (; k + kStep <= end; k += kStep) {
      if (k % kLineElements == 0) {
        KERNEL_UNROLL for (int r = 0; r < Rows; ++r) prefetch(p + r * stride + k + kPrefetchBytes / sizeof *p);
      }
      add_group<W, kStep>(sums, p + k, stride, x, k);
    }
    if constexpr (kStep > kGroup) {
      if (k + kGroup <= end) {
        add_group<W, kGroup>(sums, p + k, stride, x, k);
        k += kGroup;
      }
    }
    if (k < end) add_tail<W>(sums, p + k, stride, end - k, x, k);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec scale = splat(block_scale(w, row + r * step, block));
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) total.of[r][t] = fma(sums.of[r][t], scale, total.of[r][t]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) y[t][row + r * step] = sum_lanes(total.of[r][t]);
  }
}

// Streams that leave the sums of so many tokens in registers.
constexpr int rows_together(int tokens) { return smaller(4, kGemvSums / tokens); }

template <class W, int Tokens>
void gemv_range(const Matrix& w, int row0, int row1, const float* const* x, float* const* y) {
  constexpr int kFirst = smaller(Tokens, kGemvSums / 2);  // the others find the rows in L1
  constexpr int kRows = rows_together(kFirst);
  const int step = (row1 - row0) / kRows;
  for (int row = row0; row < row0 + step; ++row) {
    gemv_rows<W, kRows, kFirst>(w, row, step, x, y);
    if constexpr (Tokens > kFirst) gemv_rows<W, kRows, Tokens - kFirst>(w, row, step, x + kFirst, y + kFirst);
  }
  for (int row = row0 + step * kRows; row < row1; ++row) gemv_rows<W, 1, Tokens>(w, row, 1, x, y);
}

void gemv(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y) {
  with_weights(w.type, [&](auto weights) {
    using W = decltype(weights);
    with_count<kMaxGemvTokens>(num_tokens, [&](auto count) {
      gemv_range<W, decltype(count)::value>(w, row0, row1, x, y);
    });
  });
}

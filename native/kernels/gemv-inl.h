// y[t][row] for 1..8 tokens: bound by reading the weights, so each is read and decoded once for all tokens.
//
// A few rows go side by side, as many as leave the sums in registers. A row's own arithmetic is the same however rows
// are grouped, so results do not depend on how they are shared out.

constexpr int kPrefetchBytes = 4096;  // ahead in each row, across its end into the next rows

void gemv_prepare(const float* x, int n, WeightType type, float* out) {
  with_weights(type, [&](auto weights) {
    using W = decltype(weights);
    int k = 0;
    for (; k + kGroup <= n; k += kGroup) {
      KERNEL_UNROLL for (int i = 0; i < kGroup; ++i) out[k + i] = x[k + W::order(i)] * W::kUnit;
    }
    for (; k < padded(n); ++k) {
      const int from = k / kGroup * kGroup + W::order(k % kGroup);
      out[k] = from < n ? x[from] * W::kUnit : 0.0f;
    }
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

// sums += one group of 32 columns; row r of the weights is at p + r * stride, the activations at x[t] + k.
template <class W, int Rows, int Tokens>
KERNEL_INLINE void add_group(Sums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k) {
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    Vec weights[kGroupVecs];
    W::load_group(p + r * stride, weights);
    KERNEL_UNROLL for (int i = 0; i < kGroupVecs; ++i) {
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
        sums.of[r][t] = fma(weights[i], load(x[t] + k + i * kLanes), sums.of[r][t]);
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
  add_group<W>(sums, group[0], kGroup, x, k);
}

template <class W, int Rows, int Tokens>
void gemv_rows(const Matrix& w, int row, const float* const* tokens, float* const* y) {
  const float* x[Tokens];
  for (int t = 0; t < Tokens; ++t) x[t] = tokens[t];
  const typename W::Element* p = row_of<W>(w, row);
  const ptrdiff_t stride = w.cols;
  Sums<Rows, Tokens> total;
  clear(total);
  for (int block = 0; block < w.cols; block += kBlock) {
    const int n = smaller(kBlock, w.cols - block);
    const int whole = n / kGroup * kGroup;
    Sums<Rows, Tokens> sums;
    clear(sums);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const char* ahead = reinterpret_cast<const char*>(p + r * stride + block) + kPrefetchBytes;
      KERNEL_UNROLL for (int i = 0; i < kBlock * static_cast<int>(sizeof *p) / kLine; ++i) prefetch(ahead + i * kLine);
    }
    for (int k = block; k < block + whole; k += kGroup) add_group<W>(sums, p + k, stride, x, k);
    if (whole < n) add_tail<W>(sums, p + block + whole, stride, n - whole, x, block + whole);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec scale = splat(block_scale(w, row + r, block));
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) total.of[r][t] = fma(sums.of[r][t], scale, total.of[r][t]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) y[t][row + r] = sum_lanes(total.of[r][t]);
  }
}

constexpr int rows_together(int tokens) { return tokens <= 2 ? 4 : tokens <= 4 ? 2 : 1; }

void gemv(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y) {
  with_weights(w.type, [&](auto weights) {
    using W = decltype(weights);
    with_count<kMaxGemvTokens>(num_tokens, [&](auto count) {
      constexpr int kTokens = decltype(count)::value;
      constexpr int kRows = rows_together(kTokens);
      int row = row0;
      for (; row + kRows <= row1; row += kRows) gemv_rows<W, kRows, kTokens>(w, row, x, y);
      for (; row < row1; ++row) gemv_rows<W, 1, kTokens>(w, row, x, y);
    });
  });
}

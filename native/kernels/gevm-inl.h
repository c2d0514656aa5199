// y[t][col] = sum over rows of x[t][row] * w[row][col], for 1..8 tokens: the transposed product, on the same bytes.
//
// A few whole rows at a time, straight through memory, added to y, which stays in L1, in the order that suits the
// decoder; it is put right at the end. The block scale goes into x: a row's block changes too often to wait for its end.

constexpr int kRowsAdded = 4;

// y[t][col ..] += half a group of these rows.
template <class W, int Rows, int Tokens>
KERNEL_INLINE void add_half_columns(const typename W::Element* p, ptrdiff_t stride, const float (&x)[Tokens][Rows],
                                    float* const* y, int col, int half) {
  Vec weights[Rows][kHalfVecs];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) W::load_half(p + r * stride, half, weights[r]);
  KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
    float* to = y[t] + col + half * kLanes;
    Vec sum[kHalfVecs];
    KERNEL_UNROLL for (int i = 0; i < kHalfVecs; ++i) sum[i] = load(to + i * kLanes);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec factor = splat(x[t][r]);
      KERNEL_UNROLL for (int i = 0; i < kHalfVecs; ++i) sum[i] = fma(weights[r][i], factor, sum[i]);
    }
    KERNEL_UNROLL for (int i = 0; i < kHalfVecs; ++i) store(to + i * kLanes, sum[i]);
  }
}

// The last n < 32 columns. They are copied, because nothing may be read past the last row's end; their sums lie in the
// group's first places, as the decoder has them, and only those of real columns are kept.
template <class W, int Rows, int Tokens>
void add_last_columns(const typename W::Element* p, ptrdiff_t stride, int n, const float (&x)[Tokens][Rows],
                      float* const* y, int col) {
  typename W::Element group[Rows][kGroup] = {};
  for (int r = 0; r < Rows; ++r) __builtin_memcpy(group[r], p + r * stride, static_cast<size_t>(n) * sizeof *p);
  float sums[Tokens][kGroup] = {};
  float* to[Tokens];
  for (int t = 0; t < Tokens; ++t) to[t] = sums[t];
  for (int half = 0; half < kGroupVecs; half += kHalfVecs) add_half_columns<W>(group[0], kGroup, x, to, 0, half);
  for (int t = 0; t < Tokens; ++t) {
    for (int i = 0; i < kGroup; ++i) {
      if (W::order(i) < n) y[t][col + W::order(i)] += sums[t][i];
    }
  }
}

template <class W, int Rows, int Tokens>
void add_rows(const Matrix& w, int row, const float* const* x, int x_at, float* const* y) {
  const typename W::Element* p = row_of<W>(w, row);
  const ptrdiff_t stride = w.cols;
  for (int block = 0; block < w.cols; block += kBlock) {
    const int end = smaller(block + kBlock, w.cols);
    float scaled[Tokens][Rows];
    for (int r = 0; r < Rows; ++r) {
      const float scale = block_scale(w, row + r, block) * W::kOperandUnit;
      for (int t = 0; t < Tokens; ++t) scaled[t][r] = x[t][x_at + r] * scale;
      for (int k = block; k < end; k += kLine / static_cast<int>(sizeof *p)) prefetch(p + (r + Rows) * stride + k);
    }
    int col = block;
    for (; col + kGroup <= end; col += kGroup) {
      KERNEL_UNROLL for (int half = 0; half < kGroupVecs; half += kHalfVecs) {
        add_half_columns<W>(p + col, stride, scaled, y, col, half);
      }
    }
    if (col < end) add_last_columns<W>(p + col, stride, end - col, scaled, y, col);
  }
}

// From the decoder's order, and its units, to the columns'. The last few columns are in their order already.
template <class W>
void put_right(float* y, int cols) {
  int k = 0;
  for (; k + kGroup <= cols; k += kGroup) {
    float group[kGroup];
    __builtin_memcpy(group, y + k, sizeof group);
    for (int i = 0; i < kGroup; ++i) y[k + W::order(i)] = group[i] * W::kSumUnit;
  }
  for (; k < cols; ++k) y[k] *= W::kSumUnit;
}

void gevm(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y) {
  for (int t = 0; t < num_tokens; ++t) __builtin_memset(y[t], 0, static_cast<size_t>(w.cols) * sizeof(float));
  with_weights(w.type, [&](auto weights) {
    using W = decltype(weights);
    with_count<kMaxGemvTokens>(num_tokens, [&](auto count) {
      constexpr int kTokens = decltype(count)::value;
      int row = row0;
      for (; row + kRowsAdded <= row1; row += kRowsAdded) add_rows<W, kRowsAdded, kTokens>(w, row, x, row - row0, y);
      for (; row < row1; ++row) add_rows<W, 1, kTokens>(w, row, x, row - row0, y);
    });
    for (int t = 0; t < num_tokens; ++t) put_right<W>(y[t], w.cols);
  });
}

// y[t][col] = sum over rows of x[t][row] * w[row][col], for 1..8 tokens: the transposed product, on the same bytes.
//
// A few whole rows at a time, straight through memory, added to y, which stays in L1. The block scale goes into x: a
// row's block changes too often to wait for its end.

constexpr int kRowsAdded = 8;

// y[t][col ..] += these rows' columns [col, col + kLanes), or the first part of them.
template <class W, int Rows, int Tokens, class Lanes>
KERNEL_INLINE void add_columns(const typename W::Element* p, ptrdiff_t stride, const float (&x)[Tokens][Rows],
                               float* const* y, int col, Lanes lanes) {
  Vec weights[Rows];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) weights[r] = W::load_vec(p + r * stride);
  KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
    Vec sum = load(y[t] + col, lanes);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) sum = fma(weights[r], splat(x[t][r]), sum);
    store(y[t] + col, sum, lanes);
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
      const float scale = block_scale(w, row + r, block) * W::kUnit;
      for (int t = 0; t < Tokens; ++t) scaled[t][r] = x[t][x_at + r] * scale;
      for (int k = block; k < end; k += kLine / static_cast<int>(sizeof *p)) prefetch(p + (r + Rows) * stride + k);
    }
    int col = block;
    for (; col + kLanes <= end; col += kLanes) add_columns<W>(p + col, stride, scaled, y, col, Whole{});
    if (col < end) {
      typename W::Element tail[Rows][kLanes] = {};  // nothing may be read past the last row's end
      for (int r = 0; r < Rows; ++r) {
        __builtin_memcpy(tail[r], p + r * stride + col, static_cast<size_t>(end - col) * sizeof *p);
      }
      add_columns<W>(tail[0], kLanes, scaled, y, col, Part{end - col});
    }
  }
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
  });
}

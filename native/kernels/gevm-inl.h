// y[t][col] = sum over rows of x[t][row] * w[row][col], for 1..8 tokens: the transposed product, on the same bytes.
//
// A few columns of all rows at a time, fewer the more tokens there are, so that the sums stay in registers.

constexpr int columns_together(int tokens) { return tokens <= 2 ? 4 : tokens <= 4 ? 2 : 1; }  // vectors

// Rows [row, row + n), all of one block; p is the first row's first column.
template <class W, int Vecs, int Tokens>
KERNEL_INLINE void gevm_block(Sums<Vecs, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride, int n,
                              const float* const* x, int x_at) {
  for (int r = 0; r < n; ++r, p += stride) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) {
      const Vec weights = W::load_vec(p + i * kLanes);
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
        sums.of[i][t] = fma(weights, splat(x[t][x_at + r]), sums.of[i][t]);
      }
    }
  }
}

// Columns [col, col + n) with n <= Vecs * kLanes, all of one block.
template <class W, int Vecs, int Tokens>
void gevm_columns(const Matrix& w, int row0, int row1, int col, int n, const float* const* x, float* const* y) {
  constexpr int kWidth = Vecs * kLanes;
  Sums<Vecs, Tokens> total;
  clear(total);
  for (int row = row0; row < row1;) {
    const int rows = smaller(row1 - row, kBlock - row % kBlock);
    const typename W::Element* p = row_of<W>(w, row) + col;
    Sums<Vecs, Tokens> sums;
    clear(sums);
    if (n == kWidth) {
      gevm_block<W>(sums, p, w.cols, rows, x, row - row0);
    } else {
      typename W::Element tail[kBlock][kWidth] = {};
      for (int r = 0; r < rows; ++r) __builtin_memcpy(tail[r], p + r * static_cast<ptrdiff_t>(w.cols), static_cast<size_t>(n) * sizeof *p);
      gevm_block<W>(sums, tail[0], kWidth, rows, x, row - row0);
    }
    const Vec scale = splat(block_scale(w, row, col) * W::kUnit);
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) {
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) total.of[i][t] = fma(sums.of[i][t], scale, total.of[i][t]);
    }
    row += rows;
  }
  for (int t = 0; t < Tokens; ++t) {
    for_lanes(n, [&](int i, auto part) { store(y[t] + col + i, total.of[i / kLanes][t], part); });
  }
}

void gevm(const Matrix& w, int row0, int row1, const float* const* x, int num_tokens, float* const* y) {
  with_weights(w.type, [&](auto weights) {
    using W = decltype(weights);
    with_count<kMaxGemvTokens>(num_tokens, [&](auto count) {
      constexpr int kTokens = decltype(count)::value;
      constexpr int kVecs = columns_together(kTokens);
      for (int col = 0; col < w.cols; col += kVecs * kLanes) {
        gevm_columns<W, kVecs, kTokens>(w, row0, row1, col, smaller(kVecs * kLanes, w.cols - col), x, y);
      }
    });
  });
}

// Products with more tokens than gemv takes: weights decoded panel by panel to FP32, then register-blocked FMA.

constexpr int kStripVecs = kStrip / kLanes;
constexpr int kPanel = 128;                   // columns decoded at once: a panel and a strip's part of it stay in L1
constexpr int kPanelStride = kPanel + 16;     // floats; not a power of two, which would pile rows onto few cache sets

// c[r][0..Vecs * kLanes) (+)= sum over k of a[r][k] * b[k][0..Vecs * kLanes), for Rows rows.
template <int Rows, int Vecs>
KERNEL_INLINE void micro_kernel(const float* a, ptrdiff_t a_stride, const float* b, ptrdiff_t b_stride, int n, float* c,
                                ptrdiff_t c_stride, bool accumulate) {
  Vec sum[Rows][Vecs];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) sum[r][i] = zeros();
  }
  const float* rows[(Rows + 2) / 3];  // every third row: one address reaches those one and two strides behind
  KERNEL_UNROLL for (int r = 0; r < Rows; r += 3) {
    rows[r / 3] = a + r * a_stride;
    asm("" : "+r"(rows[r / 3]));  // or the compiler makes all of one pointer and more offsets than registers
  }
  for (int k = 0; k < n; ++k, b += b_stride) {
    Vec right[Vecs];
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) right[i] = load(b + i * kLanes);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec left = splat(rows[r / 3][r % 3 * a_stride + k]);
      KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) sum[r][i] = fma(left, right[i], sum[r][i]);
    }
  }
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) {
      float* out = c + r * c_stride + i * kLanes;
      store(out, accumulate ? load(out) + sum[r][i] : sum[r][i]);
    }
  }
}

// Rows of a micro-kernel of so many vectors: as many sums as fill the registers.
constexpr int micro_rows(int vecs) { return kMicroRows * kStripVecs / vecs; }

// The same for any number of rows, in blocks as even as can be: a block of one or two rows cannot fill the FMA units.
template <int Vecs>
void multiply_vecs(const float* a, ptrdiff_t a_stride, int rows, const float* b, ptrdiff_t b_stride, int n, float* c,
                   ptrdiff_t c_stride, bool accumulate) {
  for (int blocks = (rows + micro_rows(Vecs) - 1) / micro_rows(Vecs); blocks > 0; --blocks) {
    const int block = (rows + blocks - 1) / blocks;
    with_count<micro_rows(Vecs)>(block, [&](auto count) {
      micro_kernel<decltype(count)::value, Vecs>(a, a_stride, b, b_stride, n, c, c_stride, accumulate);
    });
    a += block * a_stride;
    c += block * c_stride;
    rows -= block;
  }
}

void multiply(const float* a, ptrdiff_t a_stride, int rows, const float* b, ptrdiff_t b_stride, int n, float* c,
              ptrdiff_t c_stride, bool accumulate) {
  multiply_vecs<kStripVecs>(a, a_stride, rows, b, b_stride, n, c, c_stride, accumulate);
}

// Columns [k, k + kLanes) of x's rows side by side, the missing rows zero.
KERNEL_INLINE void pack_square(const float* const* x, int num, int k, float* out) {
  Vec square[kLanes];
  KERNEL_UNROLL for (int t = 0; t < kLanes; ++t) square[t] = t < num ? load(x[t] + k) : zeros();
  transpose(square);
  KERNEL_UNROLL for (int i = 0; i < kLanes; ++i) store(out + i * kStrip, square[i]);
}

void pack(const float* const* x, int num_tokens, int cols, float* out) {
  int k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    for (int t = 0; t < kStrip; t += kLanes) pack_square(x + t, num_tokens - t, k, out + k * kStrip + t);
  }
  for (; k < padded(cols); ++k) {
    for (int t = 0; t < kStrip; ++t) out[k * kStrip + t] = t < num_tokens && k < cols ? x[t][k] : 0.0f;
  }
}

void unpack(const float* c, int rows, int num_tokens, float* const* y, int col0) {
  int r = 0;
  for (; r + kLanes <= rows; r += kLanes) {
    for (int t0 = 0; t0 < num_tokens; t0 += kLanes) {
      Vec square[kLanes];
      KERNEL_UNROLL for (int i = 0; i < kLanes; ++i) square[i] = load(c + (r + i) * kStrip + t0);
      transpose(square);
      for (int t = 0; t < smaller(kLanes, num_tokens - t0); ++t) store(y[t0 + t] + col0 + r, square[t]);
    }
  }
  for (; r < rows; ++r) {
    for (int t = 0; t < num_tokens; ++t) y[t][col0 + r] = c[r * kStrip + t];
  }
}

size_t gemm_scratch_floats() { return static_cast<size_t>(kGemmRows) * kPanelStride; }

// Columns [col, col + n) of rows [row0, row1) to scratch; asks for the panel behind while the caller multiplies.
template <class W>
void decode_panel(const Matrix& w, int row0, int row1, int col, int n, float* scratch) {
  constexpr int kBytes = kPanel * static_cast<int>(sizeof(typename W::Element));
  for (int row = row0; row < row1; ++row) {
    decode_run<W>(w, row, col, n, scratch + (row - row0) * kPanelStride);
    const char* next = reinterpret_cast<const char*>(row_of<W>(w, row) + col) + kBytes;
    for (int i = 0; i < kBytes; i += kLine) prefetch(next + i);
  }
}

// One panel times one strip, while the same panel of the strip behind comes closer: at 7168 columns, 70 tokens outgrow
// L2.
template <int Vecs>
void multiply_panel(const float* panel, int rows, const float* strip, const float* next_strip, int n, float* out,
                    bool accumulate) {
  constexpr int kRows = micro_rows(Vecs);
  const int lines = (n * kRows + rows - 1) / rows;  // of the next strip, for each block of rows
  for (int r = 0; r < rows; r += kRows) {
    for (int i = 0; i < lines; ++i) prefetch(next_strip + (r / kRows * lines + i) * kStrip);
    multiply_vecs<Vecs>(panel + r * kPanelStride, kPanelStride, smaller(kRows, rows - r), strip, kStrip, n,
                        out + r * kStrip, kStrip, accumulate);
  }
}

// The matrices' rows lie one after the other in a panel, and so in each strip of `out`.
template <class W, int Matrices>
void gemm_matrices(const Matrix* const (&w)[Matrices], int row0, int row1, const float* packed, int num_tokens,
                   float* out, ptrdiff_t out_stride, float* scratch) {
  constexpr int kHalf = kStripVecs > 1 ? kStripVecs / 2 : 1;
  const int cols = w[0]->cols;
  const int rows = (row1 - row0) * Matrices;
  const ptrdiff_t strip_floats = static_cast<ptrdiff_t>(padded(cols)) * kStrip;
  for (int col = 0; col < cols; col += kPanel) {
    const int n = smaller(kPanel, cols - col);
    for (int m = 0; m < Matrices; ++m) {
      decode_panel<W>(*w[m], row0, row1, col, n, scratch + m * (row1 - row0) * kPanelStride);
    }
    const float* strip = packed + static_cast<ptrdiff_t>(col) * kStrip;
    float* c = out;
    for (int left = num_tokens; left > 0; left -= kStrip, strip += strip_floats, c += out_stride) {
      if (left <= kHalf * kLanes) {
        multiply_panel<kHalf>(scratch, rows, strip, strip + strip_floats, n, c, col > 0);
      } else {
        multiply_panel<kStripVecs>(scratch, rows, strip, strip + strip_floats, n, c, col > 0);
      }
    }
  }
}

void gemm(const Matrix& w, int row0, int row1, const float* packed, int num_tokens, float* out, ptrdiff_t out_stride,
          float* scratch) {
  const Matrix* const matrices[] = {&w};
  with_weights(w.type, [&](auto weights) {
    gemm_matrices<decltype(weights)>(matrices, row0, row1, packed, num_tokens, out, out_stride, scratch);
  });
}

void gemm_pair(const Matrix& first, const Matrix& second, int row0, int row1, const float* packed, int num_tokens,
               float* out, ptrdiff_t out_stride, float* scratch) {
  const Matrix* const matrices[] = {&first, &second};
  with_weights(first.type, [&](auto weights) {
    gemm_matrices<decltype(weights)>(matrices, row0, row1, packed, num_tokens, out, out_stride, scratch);
  });
}

// Products with more tokens than gemv takes: weights decoded panel by panel to FP32, then register-blocked FMA.

constexpr int kStripVecs = kStrip / kLanes;
constexpr int kPanel = 128;                   // columns decoded at once: a panel and a strip's part of it stay in L1
constexpr int kPanelStride = kPanel + 16;     // floats; not a power of two, which would pile rows onto few cache sets

// c[r][0..16) (+)= sum over k of a[r][k] * b[k][0..16), for Rows rows.
template <int Rows>
KERNEL_INLINE void micro_kernel(const float* a, ptrdiff_t a_stride, const float* b, ptrdiff_t b_stride, int n, float* c,
                                ptrdiff_t c_stride, bool accumulate) {
  Vec sum[Rows][kStripVecs];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int i = 0; i < kStripVecs; ++i) sum[r][i] = zeros();
  }
  const float* rows[(Rows + 2) / 3];  // every third row: one address reaches those one and two strides behind
  KERNEL_UNROLL for (int r = 0; r < Rows; r += 3) {
    rows[r / 3] = a + r * a_stride;
    asm("" : "+r"(rows[r / 3]));  // or the compiler makes all of one pointer and more offsets than registers
  }
  for (int k = 0; k < n; ++k, b += b_stride) {
    Vec right[kStripVecs];
    KERNEL_UNROLL for (int i = 0; i < kStripVecs; ++i) right[i] = load(b + i * kLanes);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec left = splat(rows[r / 3][r % 3 * a_stride + k]);
      KERNEL_UNROLL for (int i = 0; i < kStripVecs; ++i) sum[r][i] = fma(left, right[i], sum[r][i]);
    }
  }
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int i = 0; i < kStripVecs; ++i) {
      float* out = c + r * c_stride + i * kLanes;
      store(out, accumulate ? load(out) + sum[r][i] : sum[r][i]);
    }
  }
}

// The same for any number of rows, in blocks as even as can be: a block of one or two rows cannot fill the FMA units.
void multiply(const float* a, ptrdiff_t a_stride, int rows, const float* b, ptrdiff_t b_stride, int n, float* c,
              ptrdiff_t c_stride, bool accumulate) {
  for (int blocks = (rows + kMicroRows - 1) / kMicroRows; blocks > 0; --blocks) {
    const int block = (rows + blocks - 1) / blocks;
    with_count<kMicroRows>(block, [&](auto count) {
      micro_kernel<decltype(count)::value>(a, a_stride, b, b_stride, n, c, c_stride, accumulate);
    });
    a += block * a_stride;
    c += block * c_stride;
    rows -= block;
  }
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
void multiply_panel(const float* panel, int rows, const float* strip, const float* next_strip, int n, float* out,
                    bool accumulate) {
  const int lines = (n * kMicroRows + rows - 1) / rows;  // of the next strip, for each block of rows
  for (int r = 0; r < rows; r += kMicroRows) {
    for (int i = 0; i < lines; ++i) prefetch(next_strip + (r / kMicroRows * lines + i) * kStrip);
    multiply(panel + r * kPanelStride, kPanelStride, smaller(kMicroRows, rows - r), strip, kStrip, n, out + r * kStrip,
             kStrip, accumulate);
  }
}

void gemm(const Matrix& w, int row0, int row1, const float* packed, int num_strips, float* out, ptrdiff_t out_stride,
          float* scratch) {
  const ptrdiff_t strip_floats = static_cast<ptrdiff_t>(padded(w.cols)) * kStrip;
  with_weights(w.type, [&](auto weights) {
    for (int col = 0; col < w.cols; col += kPanel) {
      const int n = smaller(kPanel, w.cols - col);
      decode_panel<decltype(weights)>(w, row0, row1, col, n, scratch);
      const float* strip = packed + static_cast<ptrdiff_t>(col) * kStrip;
      for (int s = 0; s < num_strips; ++s, strip += strip_floats) {
        multiply_panel(scratch, row1 - row0, strip, strip + strip_floats, n, out + s * out_stride, col > 0);
      }
    }
  });
}

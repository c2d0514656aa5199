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
  for (int k = 0; k < n; ++k, b += b_stride) {
    Vec right[kStripVecs];
    KERNEL_UNROLL for (int i = 0; i < kStripVecs; ++i) right[i] = load(b + i * kLanes);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec left = splat(a[r * a_stride + k]);
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

// The same for any number of rows.
void multiply(const float* a, ptrdiff_t a_stride, int rows, const float* b, ptrdiff_t b_stride, int n, float* c,
              ptrdiff_t c_stride, bool accumulate) {
  int r = 0;
  for (; r + kMicroRows <= rows; r += kMicroRows) {
    micro_kernel<kMicroRows>(a + r * a_stride, a_stride, b, b_stride, n, c + r * c_stride, c_stride, accumulate);
  }
  if (r == rows) return;
  with_count<kMicroRows>(rows - r, [&](auto count) {
    micro_kernel<decltype(count)::value>(a + r * a_stride, a_stride, b, b_stride, n, c + r * c_stride, c_stride, accumulate);
  });
}

void pack(const float* const* x, int num_tokens, int cols, float* out) {
  for (int k = 0; k < cols; ++k) {
    for (int t = 0; t < num_tokens; ++t) out[t] = x[t][k];
    for (int t = num_tokens; t < kStrip; ++t) out[t] = 0.0f;
    out += kStrip;
  }
  __builtin_memset(out, 0, static_cast<size_t>(padded(cols) - cols) * kStrip * sizeof *out);
}

void unpack(const float* c, int rows, int num_tokens, float* const* y, int col0) {
  for (int t = 0; t < num_tokens; ++t) {
    for (int r = 0; r < rows; ++r) y[t][col0 + r] = c[r * kStrip + t];
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

void gemm(const Matrix& w, int row0, int row1, const float* packed, int num_strips, float* out, ptrdiff_t out_stride,
          float* scratch) {
  const ptrdiff_t strip_floats = static_cast<ptrdiff_t>(padded(w.cols)) * kStrip;
  const int rows = row1 - row0;
  with_weights(w.type, [&](auto weights) {
    for (int col = 0; col < w.cols; col += kPanel) {
      const int n = smaller(kPanel, w.cols - col);
      decode_panel<decltype(weights)>(w, row0, row1, col, n, scratch);
      for (int s = 0; s < num_strips; ++s) {
        multiply(scratch, kPanelStride, rows, packed + s * strip_floats + static_cast<ptrdiff_t>(col) * kStrip, kStrip, n,
                 out + s * out_stride, kStrip, col > 0);
      }
    }
  });
}

// Products with more tokens than gemv takes: weights decoded panel by panel to FP32, then register-blocked FMA.

constexpr int kStripVecs = kStrip / kLanes;
constexpr int kPanel = 128;                   // columns decoded at once: a panel and a strip's part of it stay in L1
constexpr int kPanelStride = kPanel + 16;     // floats; not a power of two, which would pile rows onto few cache sets
static_assert(kBlock % kPanel == 0);

// How columns of type W lie in a panel, and so rows in a packed operand: in steps of columns of whose order the decoder makes
// what it likes. A target that has something quicker specialises this in a file before this one.
template <class W>
struct Panels {
  static constexpr int kStep = 1;
  static constexpr float kOperandUnit = 1.0f;              // what goes into an operand is multiplied by
  static constexpr int place(int column) { return column; }
  // Columns [col, col + n) of a row, no more than a panel, and zeros to the end of the last step.
  static KERNEL_INLINE void decode(const Matrix& w, int row, int col, int n, float* out) { decode_run<W>(w, row, col, n, out); }
};

// Strips that are multiplied together, of `left` ones: with one vector a strip, a left side would be loaded for every FMA.
constexpr int kMostStrips = kStripVecs == 1 ? 3 : 1;
constexpr int strips_together(int left) { return kMostStrips == 1 || left == 1 ? 1 : left % 2 == 1 ? 3 : 2; }

// Where the strips of b and c lie that are multiplied together; rows are a strip's.
struct StripPlaces {
  const float* b;
  ptrdiff_t b_stride, b_strip;
  float* c;
  ptrdiff_t c_stride, c_strip;
};

// In each strip c[r][0..Vecs * kLanes) (+)= sum over k of a[r][k] * b[k][0..Vecs * kLanes), for Rows rows.
template <int Rows, int Vecs, int Strips>
KERNEL_INLINE void micro_kernel(const float* a, ptrdiff_t a_stride, int n, const StripPlaces& at, bool accumulate) {
  constexpr int kColumns = Strips * Vecs;
  Vec sum[Rows][kColumns];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int i = 0; i < kColumns; ++i) sum[r][i] = zeros();
  }
  const float* rows[(Rows + 2) / 3];  // every third row: one address reaches those one and two strides behind
  KERNEL_UNROLL for (int r = 0; r < Rows; r += 3) {
    rows[r / 3] = a + r * a_stride;
    asm("" : "+r"(rows[r / 3]));  // or the compiler makes all of one pointer and more offsets than registers
  }
  const float* b = at.b;
  for (int k = 0; k < n; ++k, b += at.b_stride) {
    Vec right[kColumns];
    KERNEL_UNROLL for (int i = 0; i < kColumns; ++i) right[i] = load(b + i / Vecs * at.b_strip + i % Vecs * kLanes);
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec left = splat(rows[r / 3][r % 3 * a_stride + k]);
      KERNEL_UNROLL for (int i = 0; i < kColumns; ++i) sum[r][i] = fma(left, right[i], sum[r][i]);
    }
  }
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    KERNEL_UNROLL for (int i = 0; i < kColumns; ++i) {
      float* out = at.c + r * at.c_stride + i / Vecs * at.c_strip + i % Vecs * kLanes;
      store(out, accumulate ? load(out) + sum[r][i] : sum[r][i]);
    }
  }
}

// Rows of a micro-kernel of so many vectors: as many sums as fill the registers.
constexpr int micro_rows(int vecs) { return kMicroRows * kStripVecs / vecs; }

// The same for any number of rows, in blocks as even as can be: a block of one or two rows cannot fill the FMA units.
template <int Vecs, int Strips>
void multiply_vecs(const float* a, ptrdiff_t a_stride, int rows, int n, StripPlaces at, bool accumulate) {
  constexpr int kRows = micro_rows(Vecs * Strips);
  for (int blocks = (rows + kRows - 1) / kRows; blocks > 0; --blocks) {
    const int block = (rows + blocks - 1) / blocks;
    with_count<kRows>(block, [&](auto count) {
      micro_kernel<decltype(count)::value, Vecs, Strips>(a, a_stride, n, at, accumulate);
    });
    a += block * a_stride;
    at.c += block * at.c_stride;
    rows -= block;
  }
}

// The same for any number of whole strips.
void multiply(const float* a, ptrdiff_t a_stride, int rows, int n, StripPlaces at, int strips, bool accumulate) {
  for (int some = 0; strips > 0; strips -= some) {
    some = strips_together(strips);
    with_count<kMostStrips>(some, [&](auto count) {
      multiply_vecs<kStripVecs, decltype(count)::value>(a, a_stride, rows, n, at, accumulate);
    });
    at.b += some * at.b_strip;
    at.c += some * at.c_strip;
  }
}

// Columns [k, k + kLanes) of x's rows side by side, the missing rows zero.
template <class W>
KERNEL_INLINE void pack_square(const float* const* x, int num, int k, float* out) {
  const Vec unit = splat(Panels<W>::kOperandUnit);
  Vec square[kLanes];
  KERNEL_UNROLL for (int t = 0; t < kLanes; ++t) square[t] = t < num ? load(x[t] + k) * unit : zeros();
  transpose(square);
  KERNEL_UNROLL for (int i = 0; i < kLanes; ++i) store(out + Panels<W>::place(k + i) * kStrip, square[i]);
}

template <class W>
void pack_columns(const float* const* x, int num_tokens, int cols, float* out) {
  int k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    for (int t = 0; t < kStrip; t += kLanes) pack_square<W>(x + t, num_tokens - t, k, out + t);
  }
  for (; k < padded(cols); ++k) {
    float* row = out + Panels<W>::place(k) * kStrip;
    for (int t = 0; t < kStrip; ++t) row[t] = t < num_tokens && k < cols ? x[t][k] * Panels<W>::kOperandUnit : 0.0f;
  }
}

// Rows [row0, row0 + rows) of an operand are those of c; the last ones bring the zeros that pad them.
template <class W>
void pack_rows(const float* c, int rows, int row0, int cols, float* out) {
  const Vec unit = splat(Panels<W>::kOperandUnit);
  for (int r = 0; r < rows; ++r) {
    float* row = out + Panels<W>::place(row0 + r) * kStrip;
    for (int t = 0; t < kStrip; t += kLanes) store(row + t, load(c + r * kStrip + t) * unit);
  }
  for (int k = row0 + rows; row0 + rows == cols && k < padded(cols); ++k) {
    for (int t = 0; t < kStrip; t += kLanes) store(out + Panels<W>::place(k) * kStrip + t, zeros());
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

// Columns [col, col + n) of rows [row0, row1) to scratch.
template <class W>
void decode_panel(const Matrix& w, int row0, int row1, int col, int n, float* scratch) {
  for (int row = row0; row < row1; ++row) Panels<W>::decode(w, row, col, n, scratch + (row - row0) * kPanelStride);
}

// Asks for the panel behind the one at `col`, of rows [from, to) of it. While the caller multiplies, some rows at a time: all
// at once they would fill the buffers between memory and L1, and decoding would wait.
template <class W>
void ask_for_panel(const Matrix& w, int row0, int from, int to, int col) {
  constexpr int kBytes = kPanel * static_cast<int>(sizeof(typename W::Element));
  for (int r = from; r < to; ++r) {
    const char* next = reinterpret_cast<const char*>(row_of<W>(w, row0 + r) + col) + kBytes;
    const char* end = next + kBytes;
    for (next -= reinterpret_cast<uintptr_t>(next) % kLine; next < end; next += kLine) prefetch_stream(next);
  }
}

// One panel times some strips. For each block of rows ask(the rows up to its end) may ask for what comes next, and so the same
// panel of the strips behind comes closer: at 7168 columns, 70 tokens outgrow L2.
template <int Vecs, int Strips, class Ask>
void multiply_panel(const float* panel, int rows, int n, StripPlaces at, bool accumulate, Ask ask) {
  constexpr int kRows = micro_rows(Vecs * Strips);
  const int lines = (n * kRows + rows - 1) / rows;  // of each next strip, for each block of rows
  for (int r = 0; r < rows; r += kRows) {
    ask(smaller(rows, r + kRows));
    for (int s = Strips; kAsksForStrips && s < 2 * Strips; ++s) {
      for (int i = 0; i < lines; ++i) prefetch_stream(at.b + s * at.b_strip + (r / kRows * lines + i) * kStrip);
    }
    multiply_vecs<Vecs, Strips>(panel + r * kPanelStride, kPanelStride, smaller(kRows, rows - r), n, at, accumulate);
    at.c += kRows * at.c_stride;
  }
}

// The matrices' rows lie one after the other in a panel, and so in each strip of `out`.
template <class W, int Matrices>
void gemm_matrices(const Matrix* const (&w)[Matrices], int row0, int row1, const float* packed, int num_tokens,
                   float* out, ptrdiff_t out_stride, float* scratch) {
  constexpr int kHalf = kStripVecs > 1 ? kStripVecs / 2 : 1;
  const int cols = w[0]->cols;
  const int rows_each = row1 - row0;
  const int rows = rows_each * Matrices;
  const ptrdiff_t strip_floats = static_cast<ptrdiff_t>(padded(cols)) * kStrip;
  for (int col = 0; col < cols; col += kPanel) {
    const int left_cols = smaller(kPanel, cols - col);
    const int n = (left_cols + Panels<W>::kStep - 1) / Panels<W>::kStep * Panels<W>::kStep;
    for (int m = 0; m < Matrices; ++m) {
      decode_panel<W>(*w[m], row0, row1, col, left_cols, scratch + m * rows_each * kPanelStride);
    }
    StripPlaces at{packed + static_cast<ptrdiff_t>(col) * kStrip, kStrip, strip_floats, out, kStrip, out_stride};
    int asked = 0;  // rows of each matrix
    for (int left = num_tokens, strips = 0; left > 0; left -= strips * kStrip) {
      strips = strips_together((left + kStrip - 1) / kStrip);
      const int done = num_tokens - left;
      const int now = smaller(left, strips * kStrip);
      const auto ask = [&](int end_row) {  // of the next panel as much as of the work is begun
        const int end = rows_each * (done * rows + now * end_row) / (num_tokens * rows);
        for (int m = 0; m < Matrices; ++m) ask_for_panel<W>(*w[m], row0, asked, end, col);
        asked = end;
      };
      if (left <= kHalf * kLanes) {
        multiply_panel<kHalf, 1>(scratch, rows, n, at, col > 0, ask);
      } else {
        with_count<kMostStrips>(strips, [&](auto count) {
          multiply_panel<kStripVecs, decltype(count)::value>(scratch, rows, n, at, col > 0, ask);
        });
      }
      at.b += strips * at.b_strip;
      at.c += strips * at.c_strip;
    }
  }
}

// How an operand of weights of type W is laid out, and multiplied: by FMA. A target that has something better
// specialises this in a file before this one.
template <class W>
struct Gemm {
  static constexpr int kGemvTokens = kMaxGemvTokens;
  static constexpr int kPairRows = 18;
  static constexpr int kColumnFloats = kStrip;   // of a strip
  static constexpr int kKeptBytes = 1 << 30;     // of strips: FMAs take longer than what they read, wherever it comes from
  static constexpr size_t kScratchFloats = static_cast<size_t>(kGemmRows) * kPanelStride;

  static void pack(const float* const* x, int num_tokens, int cols, float* out) { pack_columns<W>(x, num_tokens, cols, out); }

  static void pack_product(const float* c, int rows, int row0, int /*num_tokens*/, int cols, float* out) { pack_rows<W>(c, rows, row0, cols, out); }

  template <int Matrices>
  static void run(const Matrix* const (&w)[Matrices], int row0, int row1, const float* packed, int num_tokens, float* out,
                  ptrdiff_t out_stride, float* scratch) {
    gemm_matrices<W>(w, row0, row1, packed, num_tokens, out, out_stride, scratch);
  }
};

int gemv_tokens(WeightType type) {
  int tokens = 0;
  with_weights(type, [&](auto weights) { tokens = Gemm<decltype(weights)>::kGemvTokens; });
  return tokens;
}

int pair_rows(WeightType type) {
  int rows = 0;
  with_weights(type, [&](auto weights) { rows = Gemm<decltype(weights)>::kPairRows; });
  return rows;
}

void pack(const float* const* x, int num_tokens, int cols, WeightType type, float* out) {
  with_weights(type, [&](auto weights) { Gemm<decltype(weights)>::pack(x, num_tokens, cols, out); });
}

void pack_product(const float* c, int rows, int row0, int num_tokens, int cols, WeightType type, float* out) {
  with_weights(type, [&](auto weights) { Gemm<decltype(weights)>::pack_product(c, rows, row0, num_tokens, cols, out); });
}

size_t strip_floats(int cols, WeightType type) {
  size_t floats = 0;
  with_weights(type, [&](auto weights) { floats = static_cast<size_t>(padded(cols) * Gemm<decltype(weights)>::kColumnFloats); });
  return floats;
}

int strips_kept(int cols, WeightType type) {
  int kept = 0;
  with_weights(type, [&](auto weights) { kept = Gemm<decltype(weights)>::kKeptBytes; });
  const int fitting = kept / static_cast<int>(strip_floats(cols, type) * sizeof(float));
  return fitting > 3 ? fitting : 3;
}

size_t gemm_scratch_floats() { return larger(Gemm<F32Weights>::kScratchFloats, Gemm<Fp8Weights>::kScratchFloats); }

void gemm(const Matrix& w, int row0, int row1, const float* packed, int num_tokens, float* out, ptrdiff_t out_stride,
          float* scratch) {
  const Matrix* const matrices[] = {&w};
  with_weights(w.type, [&](auto weights) {
    Gemm<decltype(weights)>::run(matrices, row0, row1, packed, num_tokens, out, out_stride, scratch);
  });
}

void gemm_pair(const Matrix& first, const Matrix& second, int row0, int row1, const float* packed, int num_tokens,
               float* out, ptrdiff_t out_stride, float* scratch) {
  const Matrix* const matrices[] = {&first, &second};
  with_weights(first.type, [&](auto weights) {
    Gemm<decltype(weights)>::run(matrices, row0, row1, packed, num_tokens, out, out_stride, scratch);
  });
}

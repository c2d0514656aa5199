// y[t][row] for 1..8 tokens: bound by reading the weights, so each is read and decoded once for all tokens.
//
// A few rows go side by side, as many as leave the sums in registers, and far apart: hardware prefetchers follow one
// stream per page, and four streams kept 13 GB/s coming where one kept 9 (one Xeon core). A row's own
// arithmetic is the same however rows are grouped, so results do not depend on how they are shared out.

constexpr int kOperandBytes = 16 << 10;  // of activations that are read again and again: half of L1

// How gemv reads activations and weights of type W, and multiplies: by FMA. A target that has something better
// specialises this in a file before this one.
template <class W>
struct Products {
  using Weights = Vec;
  using Operand = Vec;
  static constexpr int kStep = kGroup;   // columns decoded together
  static constexpr int kLeast = kGroup;  // the fewest that can be, a divisor of kStep
  static constexpr int kWidth = kLanes;  // columns in one Weights
  static constexpr int parts(int /*tokens*/) { return 2; }  // in which they are decoded: fewer registers than at once
  static constexpr float kSumUnit = W::kSumUnit;
  // Whether sums stay in registers from block to block, and weights take the blocks' scales: where there are so many sums
  // that two of each would not fit.
  static constexpr bool keeps_sums(int tokens) { return tokens >= kManySums; }
  // kLeast activations as load_operand() reads them, in the room of as many floats.
  static KERNEL_INLINE void prepare(const float* x, float* out) {
    KERNEL_UNROLL for (int i = 0; i < kGroup; ++i) out[i] = x[W::order(i)] * W::kOperandUnit;
  }
  static KERNEL_INLINE Operand load_operand(const float* x) { return load(x); }
  static KERNEL_INLINE Operand in_registers(Operand x) { return in_register(x); }
  static KERNEL_INLINE void load_part(const typename W::Element* p, int part, Vec (&out)[kHalfVecs]) {
    W::load_half(p, part * kHalfVecs, out);
  }
  static KERNEL_INLINE Vec add(Vec weights, Vec x, Vec sum) { return fma(weights, x, sum); }
};

// Where groups of W's elements are rare ones that have to be read as other weights. A target that has such specialises this,
// too, in a file before this one.
template <class W>
struct Rare {
  using Weights = W;
  template <int Rows>
  static KERNEL_INLINE bool is_one(const typename W::Element* /*p*/, ptrdiff_t /*stride*/) { return false; }
};

void gemv_prepare(const float* x, int n, WeightType type, float* out) {
  with_weights(type, [&](auto weights) {
    using P = Products<decltype(weights)>;
    int k = 0;
    for (; k + P::kLeast <= n; k += P::kLeast) P::prepare(x + k, out + k);
    if (k == n) return;
    float tail[P::kLeast] = {};
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
  Vec scale[Rows];  // of the rows' block, where weights take it

  KERNEL_INLINE Vec of(int r, int t) const {
    return kChains == 2 ? chain[0].of[r][t] + chain[kChains - 1].of[r][t] : chain[0].of[r][t];
  }
};

template <int Rows, int Tokens>
KERNEL_INLINE void clear(BlockSums<Rows, Tokens>& sums) {
  KERNEL_UNROLL for (int c = 0; c < sums.kChains; ++c) clear(sums.chain[c]);
}

// A part of row r's weights at p.
template <class W, int Rows, int Tokens, int Vecs>
KERNEL_INLINE void load_part(const BlockSums<Rows, Tokens>& sums, int r, const typename W::Element* p, int part,
                             typename Products<W>::Weights (&out)[Vecs]) {
  Products<W>::load_part(p, part, out);
  if constexpr (W::kHasScales && Products<W>::keeps_sums(Tokens)) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) out[i] = out[i] * sums.scale[r];
  }
}

// sums += a part of a group, the activations of the few tokens in registers.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_part_by_rows(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                                    const float* const* x, int k, int part) {
  using P = Products<W>;
  constexpr int kVecs = Columns / P::kWidth / P::parts(Tokens);
  typename P::Operand right[Tokens][kVecs];
  KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
    KERNEL_UNROLL for (int i = 0; i < kVecs; ++i) {
      right[t][i] = P::load_operand(x[t] + k + (part * kVecs + i) * P::kWidth);
    }
  }
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    typename P::Weights weights[kVecs];
    load_part<W>(sums, r, p + r * stride, part, weights);
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
  constexpr int kVecs = Columns / P::kWidth / P::parts(Tokens);
  typename P::Weights weights[Rows][kVecs];
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) load_part<W>(sums, r, p + r * stride, part, weights[r]);
  KERNEL_UNROLL for (int i = 0; i < kVecs; ++i) {
    KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) {
      typename P::Operand right = P::load_operand(x[t] + k + (part * kVecs + i) * P::kWidth);
      if constexpr (Rows > 1) right = P::in_registers(right);
      KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
        Vec& sum = sums.chain[i % sums.kChains].of[r][t];
        sum = P::add(weights[r][i], right, sum);
      }
    }
  }
}

// sums += a group of columns; row r of the weights is at p + r * stride, the activations at x[t] + k.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_plain_group(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k) {
  constexpr int kParts = Products<W>::parts(Tokens);
  KERNEL_UNROLL for (int part = 0; part < kParts; ++part) {
    if constexpr (Tokens * sizeof(typename Products<W>::Operand) <= Rows * sizeof(typename Products<W>::Weights)) {
      add_part_by_rows<W, Columns>(sums, p, stride, x, k, part);
    } else {
      add_part_by_tokens<W, Columns>(sums, p, stride, x, k, part);
    }
    keep_order();
  }
}

template <class W, int Columns, int Rows, int Tokens>
__attribute__((noinline)) void add_rare_group(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                                              const float* const* x, int k) {
  add_plain_group<typename Rare<W>::Weights, Columns>(sums, p, stride, x, k);
}

// The same, whatever the group holds.
template <class W, int Columns, int Rows, int Tokens>
KERNEL_INLINE void add_group(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k) {
  if (Rare<W>::template is_one<Rows>(p, stride)) {
    BlockSums<Rows, Tokens> in_memory = sums;  // so that `sums` itself has no address and stays in registers
    add_rare_group<W, Columns>(in_memory, p, stride, x, k);
    sums = in_memory;
  } else {
    add_plain_group<W, Columns>(sums, p, stride, x, k);
  }
}

// sums += the last n < kLeast columns. They are copied, because nothing may be read past the last row's end.
template <class W, int Rows, int Tokens>
void add_tail(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride, int n,
              const float* const* x, int k) {
  constexpr int kLeast = Products<W>::kLeast;
  typename W::Element group[Rows][kLeast];
  __builtin_memset(group, 0x08, sizeof group);  // normal numbers: they meet zeros
  for (int r = 0; r < Rows; ++r) __builtin_memcpy(group[r], p + r * stride, static_cast<size_t>(n) * sizeof *p);
  add_group<W, kLeast>(sums, group[0], kLeast, x, k);
}

// sums += a block of 128 columns; what lies `ahead` comes closer meanwhile.
template <class W, int Rows, int Tokens>
KERNEL_INLINE void add_block(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride,
                             const float* const* x, int k, ptrdiff_t ahead) {
  constexpr int kLineElements = kLine / static_cast<int>(sizeof(typename W::Element));
  KERNEL_UNROLL for (int i = 0; i < kBlock; i += Products<W>::kStep) {
    if (i % kLineElements == 0) {
      KERNEL_UNROLL for (int r = 0; r < Rows; ++r) prefetch_stream(p + r * stride + i + ahead);
    }
    add_group<W, Products<W>::kStep>(sums, p + i, stride, x, k + i);
  }
}

// sums += the last n < 128 columns.
template <class W, int Rows, int Tokens>
void add_part_of_block(BlockSums<Rows, Tokens>& sums, const typename W::Element* p, ptrdiff_t stride, int n,
                       const float* const* x, int k) {
  constexpr int kLeast = Products<W>::kLeast;
  int i = 0;
  for (; i + kLeast <= n; i += kLeast) add_group<W, kLeast>(sums, p + i, stride, x, k + i);
  if (i < n) add_tail<W>(sums, p + i, stride, n - i, x, k + i);
}

// total += the sums of column `k`'s block, each times its scale.
template <class W, int Rows, int Tokens>
KERNEL_INLINE void add_scaled_sums(Sums<Rows, Tokens>& total, const BlockSums<Rows, Tokens>& sums,
                                   const float* const (&scales)[Rows], int k) {
  KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
    const Vec scale = splat(W::kHasScales ? scales[r][static_cast<unsigned>(k) / kBlock] : 1.0f);
    KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) total.of[r][t] = fma(sums.of(r, t), scale, total.of[r][t]);
  }
}

// Column `k`'s block is next.
template <class W, int Rows, int Tokens>
KERNEL_INLINE void set_scales(BlockSums<Rows, Tokens>& sums, const float* const (&scales)[Rows], int k) {
  if constexpr (W::kHasScales) {
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      sums.scale[r] = splat(scales[r][static_cast<unsigned>(k) / kBlock] * Products<W>::kSumUnit);
    }
  }
}

// y[t][row + r * step] = the sum of its lanes times `unit`, or more by that.
template <int Rows, int Tokens>
KERNEL_INLINE void end_sums(const Sums<Rows, Tokens>& sums, float unit, int row, int step, bool adds, float* const* y) {
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) {
      float& out = y[t][row + r * step];
      out = sum_lanes(sums.of[r][t]) * unit + (adds ? out : 0.0f);
    }
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
  const ptrdiff_t ahead = to - from == w.cols ? kStreamAhead / static_cast<ptrdiff_t>(sizeof *p) : w.cols;
  constexpr bool kKeepsSums = Products<W>::keeps_sums(Tokens);
  Sums<Rows, Tokens> total;
  BlockSums<Rows, Tokens> sums;
  clear(total);
  clear(sums);
  for (int k = from; k < to; k += kBlock) {
    if constexpr (kKeepsSums) {
      set_scales<W>(sums, scales, k);
    } else {
      clear(sums);
    }
    if (k + kBlock <= to) {
      add_block<W>(sums, p + k, stride, x, k, ahead);
    } else {
      BlockSums<Rows, Tokens> in_memory = sums;  // as for a rare group
      add_part_of_block<W>(in_memory, p + k, stride, to - k, x, k);
      sums = in_memory;
    }
    if constexpr (!kKeepsSums) add_scaled_sums<W>(total, sums, scales, k);
  }
  constexpr float kUnit = kKeepsSums && W::kHasScales ? 1.0f : Products<W>::kSumUnit;
  if constexpr (kKeepsSums || 2 * Rows * Tokens < kRegisters) {
    // A copy, as the loops that end them take them from memory.
    Sums<Rows, Tokens> in_memory;
    KERNEL_UNROLL for (int r = 0; r < Rows; ++r) {
      KERNEL_UNROLL for (int t = 0; t < Tokens; ++t) in_memory.of[r][t] = kKeepsSums ? sums.of(r, t) : total.of[r][t];
    }
    end_sums(in_memory, kUnit, row, step, from > 0, y);
  } else {
    end_sums(total, kUnit, row, step, from > 0, y);
  }
}

// Columns that go through all rows before the next ones do: all of them, unless each row reads the activations of many
// tokens for itself. From L2, those of eight tokens take longer than the weights then; parts of them stay in L1.
constexpr int columns_together(int tokens) {
  return tokens < 6 || kGemvRows[tokens - 1] > 1 ? 1 << 30 : kOperandBytes / 4 / tokens / kBlock * kBlock;
}

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

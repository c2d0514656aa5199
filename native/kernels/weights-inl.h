// The three weight types as the kernels see them: elements in natural order, or a group of 32 in the decoder's order, half of it
// at a time, `half` its first vector.
//
// A loaded value times kUnit is the weight, before its block scale. For groups the unit lies with the other factors:
// activations times kOperandUnit, sums times kSumUnit.

constexpr int kGroup = 32;                      // elements decoded together
constexpr int kGroupVecs = kGroup / kLanes;
constexpr int kHalfVecs = kGroupVecs / 2;
constexpr int kLine = 64;                       // bytes in a cache line

struct Fp8Weights {
  using Element = uint8_t;
  static constexpr bool kHasScales = true;
  static constexpr float kUnit = kFp8Units.value;
  static constexpr float kOperandUnit = kFp8Units.operand;
  static constexpr float kSumUnit = kFp8Units.sum;
  static constexpr int order(int place) { return fp8_order(place); }
  static KERNEL_INLINE Vec load_vec(const Element* p) { return load_fp8(p); }
  static KERNEL_INLINE void load_half(const Element* p, int half, Vec (&out)[kHalfVecs]) { load_fp8_half(p, half, out); }
};

struct Bf16Weights {
  using Element = uint16_t;
  static constexpr bool kHasScales = false;
  static constexpr float kUnit = 1.0f;
  static constexpr float kOperandUnit = 1.0f;
  static constexpr float kSumUnit = 1.0f;
  static constexpr int order(int place) { return place; }
  static KERNEL_INLINE Vec load_vec(const Element* p) { return load_bf16(p); }
  static KERNEL_INLINE void load_half(const Element* p, int half, Vec (&out)[kHalfVecs]) {
    KERNEL_UNROLL for (int i = 0; i < kHalfVecs; ++i) out[i] = load_bf16(p + (half + i) * kLanes);
  }
};

struct F32Weights {
  using Element = float;
  static constexpr bool kHasScales = false;
  static constexpr float kUnit = 1.0f;
  static constexpr float kOperandUnit = 1.0f;
  static constexpr float kSumUnit = 1.0f;
  static constexpr int order(int place) { return place; }
  static KERNEL_INLINE Vec load_vec(const Element* p) { return load(p); }
  static KERNEL_INLINE void load_half(const Element* p, int half, Vec (&out)[kHalfVecs]) {
    KERNEL_UNROLL for (int i = 0; i < kHalfVecs; ++i) out[i] = load(p + (half + i) * kLanes);
  }
};

// Calls body with the type that stands for `type`.
template <class Body>
KERNEL_INLINE void with_weights(WeightType type, Body body) {
  switch (type) {
    case WeightType::fp8: return body(Fp8Weights{});
    case WeightType::bf16: return body(Bf16Weights{});
    case WeightType::f32: return body(F32Weights{});
  }
}

// Calls body with n, in [1, Most], as the type IntTag<n>.
template <int N>
struct IntTag {
  static constexpr int value = N;
};

template <int Most, class Body>
KERNEL_INLINE void with_count(int n, Body body) {
  if constexpr (Most > 1) {
    if (n < Most) return with_count<Most - 1>(n, body);
  }
  body(IntTag<Most>{});
}

template <class W>
KERNEL_INLINE const typename W::Element* row_of(const Matrix& w, int row) {
  return static_cast<const typename W::Element*>(w.data) + static_cast<ptrdiff_t>(row) * w.cols;
}

// The scales of a row's blocks, null where it has none.
KERNEL_INLINE const float* row_scales(const Matrix& w, int row) {
  if (w.type != WeightType::fp8) return nullptr;
  const ptrdiff_t blocks = (w.cols + kBlock - 1) / kBlock;
  return w.scale + (row + w.scale_shift) / kBlock * blocks;
}

KERNEL_INLINE float block_scale(const Matrix& w, int row, int col) {
  const float* scales = row_scales(w, row);
  return scales == nullptr ? 1.0f : scales[col / kBlock];
}

// n weights from (row, col), in natural order, block scale applied, as FP32.
template <class W>
void decode_run(const Matrix& w, int row, int col, int n, float* out) {
  const typename W::Element* p = row_of<W>(w, row) + col;
  for (int done = 0; done < n;) {
    const int run = smaller(n - done, kBlock - (col + done) % kBlock);
    const Vec factor = splat(block_scale(w, row, col + done) * W::kUnit);
    int i = 0;
    for (; i + kLanes <= run; i += kLanes) store(out + done + i, W::load_vec(p + done + i) * factor);
    if (i < run) {
      typename W::Element tail[kLanes] = {};  // the row may end here: nothing past it is read
      __builtin_memcpy(tail, p + done + i, static_cast<size_t>(run - i) * sizeof *tail);
      store(out + done + i, W::load_vec(tail) * factor, Part{run - i});
    }
    done += run;
  }
}

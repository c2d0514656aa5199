// gemm's panels of FP8 weights in AVX-512: 64 codes at once, straight to FP32 bits as gemv_shift-inl.h has them.
//
// A Zen 5 core multiplies at twice a Zen 4's rate, so decoding by way of FP16, 16 codes at a time, took a seventh of the time
// at 64 tokens.

template <class W>
struct Panels;

template <>
struct Panels<Fp8Weights> {
  using Codes = Products<Fp8Weights>;
  static constexpr int kStep = Codes::kStep;
  static constexpr float kOperandUnit = Codes::kOperandUnit;
  static constexpr int place(int column) {
    const int k = column % kStep;
    return column - k + k % 2 * 32 + k % 4 / 2 * 16 + k / 4;
  }
  static KERNEL_INLINE void decode_step(const uint8_t* p, Vec factor, float* out) {
    if (Rare<Fp8Weights>::is_one<1>(p, 0)) return decode_group<Products<DenormalFp8>>(p, factor, out);
    decode_group<Codes>(p, factor, out);
  }
  template <class Some>
  static KERNEL_INLINE void decode_group(const uint8_t* p, Vec factor, float* out) {
    KERNEL_UNROLL for (int part = 0; part < 2; ++part) {
      Vec values[2];
      Some::load_part(p, part, values);
      KERNEL_UNROLL for (int i = 0; i < 2; ++i) store(out + (2 * part + i) * kLanes, values[i] * factor);
    }
  }
  static KERNEL_INLINE void decode(const Matrix& w, int row, int col, int n, float* out) {
    const uint8_t* p = row_of<Fp8Weights>(w, row) + col;
    const Vec factor = splat(block_scale(w, row, col) * Codes::kSumUnit);
    int i = 0;
    for (; i + kStep <= n; i += kStep) decode_step(p + i, factor, out + i);
    if (i < n) {
      uint8_t tail[kStep] = {};  // the row may end here: nothing past it is read
      __builtin_memcpy(tail, p + i, static_cast<size_t>(n - i));
      decode_step(tail, factor, out + i);
    }
  }
};

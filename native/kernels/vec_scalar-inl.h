// Eight lanes as plain arrays: the vector vocabulary of every target, in the form that is easiest to check.

#define KERNEL_UNROLL  // nothing: lanes are loops already, and unrolling them takes the compiler half a minute

constexpr int kLanes = 8;
constexpr int kMicroRows = 4;       // rows of the GEMM micro-kernel
constexpr int kGemvRows[] = {1, 1, 1, 1, 1, 1, 1, 1};  // rows that gemv takes at a time, for 1 to 8 tokens
constexpr int kGemvChains = 0;      // FMAs that have to be under way at the same time
constexpr int kManySums = 5;        // tokens whose sums fill the registers
constexpr int kRegisters = 16;

struct Vec {
  float lane[kLanes];
};

struct Whole {};                    // all lanes of a vector
struct Part {                       // its first n lanes, 0 < n < kLanes
  int n;
};

template <class F>
KERNEL_INLINE Vec each_lane(F f) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out.lane[i] = f(i);
  return out;
}

KERNEL_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
KERNEL_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }

KERNEL_INLINE Vec splat(float x) {
  return each_lane([&](int) { return x; });
}
KERNEL_INLINE Vec zeros() { return splat(0.0f); }

KERNEL_INLINE Vec load(const float* p, Whole = {}) {
  return each_lane([&](int i) { return p[i]; });
}
KERNEL_INLINE Vec load(const float* p, Part part) {
  return each_lane([&](int i) { return i < part.n ? p[i] : 0.0f; });
}
KERNEL_INLINE void store(float* p, Vec x, Whole = {}) {
  for (int i = 0; i < kLanes; ++i) p[i] = x.lane[i];
}
KERNEL_INLINE void store(float* p, Vec x, Part part) {
  for (int i = 0; i < part.n; ++i) p[i] = x.lane[i];
}

KERNEL_INLINE Vec operator+(Vec a, Vec b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
KERNEL_INLINE Vec operator-(Vec a, Vec b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
KERNEL_INLINE Vec operator*(Vec a, Vec b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
KERNEL_INLINE Vec operator/(Vec a, Vec b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
KERNEL_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
// The second operand where either is NaN, as the x86 instructions do.
KERNEL_INLINE Vec max(Vec a, Vec b) {
  return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
KERNEL_INLINE Vec min(Vec a, Vec b) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// x, or 0 where key < bound.
KERNEL_INLINE Vec zero_below(Vec x, Vec key, Vec bound) {
  return each_lane([&](int i) { return key.lane[i] < bound.lane[i] ? 0.0f : x.lane[i]; });
}
KERNEL_INLINE Vec round_nearest(Vec x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
  return each_lane([&](int i) { return (x.lane[i] + magic) - magic; });
}
// 2^x for whole x in [-126, 127].
KERNEL_INLINE Vec power_of_two(Vec x) {
  return each_lane([&](int i) {
    return float_of((static_cast<uint32_t>(static_cast<int>(x.lane[i] == x.lane[i] ? x.lane[i] : 0.0f) + 127)) << 23);
  });
}

// Rows become columns.
KERNEL_INLINE void transpose(Vec (&x)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float upper = x[j].lane[i];
      x[j].lane[i] = x[i].lane[j];
      x[i].lane[j] = upper;
    }
  }
}

KERNEL_INLINE float sum_lanes(Vec x) {
  const float* v = x.lane;
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}
KERNEL_INLINE float max_lane(Vec x) {
  float best = x.lane[0];
  for (int i = 1; i < kLanes; ++i) best = best > x.lane[i] ? best : x.lane[i];
  return best;
}
KERNEL_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

KERNEL_INLINE Vec load_bf16(const uint16_t* p, Whole = {}) {
  return each_lane([&](int i) { return float_of(static_cast<uint32_t>(p[i]) << 16); });
}
KERNEL_INLINE Vec load_bf16(const uint16_t* p, Part part) {
  return each_lane([&](int i) { return i < part.n ? float_of(static_cast<uint32_t>(p[i]) << 16) : 0.0f; });
}
KERNEL_INLINE uint16_t round_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);  // stays NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
KERNEL_INLINE void store_bf16(uint16_t* p, Vec x, Whole = {}) {
  for (int i = 0; i < kLanes; ++i) p[i] = round_bf16(x.lane[i]);
}
KERNEL_INLINE void store_bf16(uint16_t* p, Vec x, Part part) {
  for (int i = 0; i < part.n; ++i) p[i] = round_bf16(x.lane[i]);
}

struct Fp8Table {
  float value[256];
};

constexpr Fp8Table make_fp8_table() {
  Fp8Table table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    float value = static_cast<float>(exponent ? 8 + (code & 7) : code & 7) / 512.0f;  // 2^-9 is the smallest subnormal
    for (int i = 1; i < exponent; ++i) value *= 2.0f;
    table.value[code] = code & 128 ? -value : value;
  }
  return table;
}

constexpr Fp8Table kFp8 = make_fp8_table();

constexpr Fp8Units kFp8Units{1.0f, 1.0f, 1.0f};
KERNEL_INLINE Vec load_fp8(const uint8_t* p) {
  return each_lane([&](int i) { return kFp8.value[p[i]]; });
}

// 32 codes in the order that suits the decoder, half of them at a time: place i holds element fp8_order(i).
constexpr int fp8_order(int place) { return place; }
KERNEL_INLINE void load_fp8_half(const uint8_t* p, int half, Vec (&out)[16 / kLanes]) {
  for (int i = 0; i < 16 / kLanes; ++i) out[i] = load_fp8(p + (half + i) * kLanes);
}

// Loads before this are not kept for what comes after it: one from L1 is cheaper than a register.
KERNEL_INLINE void keep_order() { asm volatile("" ::: "memory"); }
KERNEL_INLINE Vec in_register(Vec x) { return x; }
KERNEL_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

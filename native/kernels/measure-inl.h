// Streaming reads, each the simplest of its kind, and FMA chains.

#ifdef __AVX__
constexpr int kBitsBytes = kLanes * 4;
#else
constexpr int kBitsBytes = 16;  // the widest register that every x86-64 has
#endif
typedef long long Bits __attribute__((vector_size(kBitsBytes), aligned(1), may_alias));

KERNEL_INLINE Bits bits_at(const uint8_t* p) { return *reinterpret_cast<const Bits*>(p); }

KERNEL_INLINE uint64_t digest(Bits x) {
  uint64_t sum = 0;
  for (int i = 0; i < kBitsBytes / 8; ++i) sum += static_cast<uint64_t>(x[i]);
  return sum;
}

constexpr size_t kStep = 256;  // bytes a loop

// One stream; `ahead` bytes are asked for in advance (0: the hardware's prefetcher alone).
template <int kAhead>
uint64_t read_stream(const uint8_t* data, size_t bytes) {
  Bits sum[4] = {};
  for (size_t at = 0; at < bytes; at += kStep) {
    if constexpr (kAhead > 0) {
      KERNEL_UNROLL for (size_t i = 0; i < kStep; i += 64) __builtin_prefetch(data + at + kAhead + i, 0, 3);
    }
    KERNEL_UNROLL for (size_t i = 0; i < kStep / sizeof(Bits); ++i) sum[i % 4] += bits_at(data + at + i * sizeof(Bits));
  }
  return digest(sum[0] + sum[1] + sum[2] + sum[3]);
}

// Four streams side by side, a quarter each.
uint64_t read_four(const uint8_t* data, size_t bytes) {
  Bits sum[4] = {};
  const size_t quarter = bytes / 4;
  for (size_t at = 0; at < quarter; at += kStep / 4) {
    KERNEL_UNROLL for (size_t s = 0; s < 4; ++s) {
      KERNEL_UNROLL for (size_t i = 0; i < kStep / 4; i += sizeof(Bits)) sum[s] += bits_at(data + s * quarter + at + i);
    }
  }
  return digest(sum[0] + sum[1] + sum[2] + sum[3]);
}

// One stream past the outer caches.
uint64_t read_non_temporal(const uint8_t* data, size_t bytes) {
  Bits sum[4] = {};
  for (size_t at = 0; at < bytes; at += kStep) {
    KERNEL_UNROLL for (size_t i = 0; i < kStep; i += 64) __builtin_prefetch(data + at + 2048 + i, 0, 0);
    KERNEL_UNROLL for (size_t i = 0; i < kStep / sizeof(Bits); ++i) sum[i % 4] += bits_at(data + at + i * sizeof(Bits));
  }
  return digest(sum[0] + sum[1] + sum[2] + sum[3]);
}

constexpr const char* kReaderNames[] = {"plain", "prefetch 1K", "prefetch 4K", "non-temporal", "four streams", nullptr};

uint64_t read_variant(int variant, const uint8_t* data, size_t bytes) {
  switch (variant) {
    case 0: return read_stream<0>(data, bytes);
    case 1: return read_stream<1024>(data, bytes);
    case 2: return read_stream<4096>(data, bytes);
    case 3: return read_non_temporal(data, bytes);
    default: return read_four(data, bytes);
  }
}

// Chains have to hide the FMA's latency (4 or 5 cycles, on 2 units), and to fit beside two constants into 16 registers.
template <int kChains>
double fma_chains(int64_t steps, float* sink) {
  Vec sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = splat(static_cast<float>(i));
  const Vec factor = splat(0.999f);
  const Vec term = splat(0.001f);
  for (int64_t n = 0; n < steps; ++n) {
    KERNEL_UNROLL for (int i = 0; i < kChains; ++i) sum[i] = fma(sum[i], factor, term);
  }
  float total = 0;
  for (int i = 0; i < kChains; ++i) total += sum_lanes(sum[i]);
  *sink = total;
  return 2.0 * kChains * kLanes * static_cast<double>(steps);
}

constexpr int kNumFmas = 2;

double fma_variant(int variant, int64_t steps, float* sink) { return variant == 0 ? fma_chains<8>(steps, sink) : fma_chains<12>(steps, sink); }

constexpr Measures make_measures() { return {kReaderNames, read_variant, kNumFmas, fma_variant}; }

// What is read next comes into L2, and from there by the hardware's prefetcher: a Zen 4 core keeps more lines on their
// way to L2 than to L1. One token read 25 GB/s a core this way, 20 with prefetches into L1 at any distance; on two Zen 5
// cores GEMMs of 48 and 256 tokens, whose panel fills L1, gained 8 %.

constexpr int kStreamAhead = 2048;  // bytes, in each stream

KERNEL_INLINE void prefetch_stream(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
constexpr bool kAsksForStrips = true;
constexpr ptrdiff_t kAskStride = 64;

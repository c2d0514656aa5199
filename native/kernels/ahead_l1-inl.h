// What is read next comes into L1.

constexpr int kStreamAhead = 1024;  // bytes, in each stream

KERNEL_INLINE void prefetch_stream(const void* p) { prefetch(p); }
// AVX-512 multiplies faster than it gets a next strip this way: two Xeon cores lost a tenth at 48 and 256 tokens.
constexpr bool kAsksForStrips = kLanes < kStrip;

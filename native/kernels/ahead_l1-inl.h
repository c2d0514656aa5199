// What is read next comes into L1.

constexpr int kStreamAhead = 1024;  // bytes, in each stream

KERNEL_INLINE void prefetch_stream(const void* p) { prefetch(p); }
// AVX-512 multiplies faster than it gets a next strip this way: two Xeon cores lost a tenth at 48 and 256 tokens.
constexpr bool kAsksForStrips = kLanes < kStrip;

// Bytes from one line of latents that decode attention asks for to the next. Hardware brings those between: with each line
// asked for, a page that two Xeon cores attend to in 14.6 us from L2 took 18.4 from memory, with every third one 17.5; as
// few lines as that, side by side, 20.7.
constexpr ptrdiff_t kAskStride = kLanes < kStrip ? 64 : 3 * 64;

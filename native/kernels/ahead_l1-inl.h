// What is read next comes into L1.

constexpr int kStreamAhead = 1024;  // bytes, in each stream

KERNEL_INLINE void prefetch_stream(const void* p) { prefetch(p); }

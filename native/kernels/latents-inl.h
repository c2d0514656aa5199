// What both forms of decode attention in the latent space begin and end with.

// Asks for memory that is needed soon, line by line while the multipliers are busy: a core can wait for about 20 lines,
// and stands still when it asks for more.
struct Ahead {
  const char* at;
  const char* last;

  explicit Ahead(const LatentBlock& job)
      : at(static_cast<const char*>(job.next != nullptr ? job.next : job.rows)), last(at + (job.next != nullptr ? job.next_bytes : 0)) {}

  // For some lines, to go on `stride` bytes behind the first of them.
  template <int Lines = 1>
  KERNEL_INLINE void ask(ptrdiff_t stride = Lines * kLine) {
    KERNEL_UNROLL for (int i = 0; i < Lines; ++i) __builtin_prefetch(at + i * kLine, 0, 2);  // to L2: a page is more than L1 holds
    at += at < last ? stride : 0;
  }
};

// Online softmax of each head: scores become exp(score - m); factors are what the sums so far must be multiplied by.
template <int Vecs>
void softmax_heads(float* scores, int num, float scale, float* m, float* l, float* factors) {
  for (int i = 0; i < Vecs * kLanes; i += kLanes) {
    Vec largest = load(scores + i);
    for (int j = 1; j < num; ++j) largest = max(largest, load(scores + j * kStrip + i));
    const Vec old_m = load(m + i);
    const Vec new_m = max(largest * splat(scale), old_m);
    Vec sum = zeros();
    for (int j = 0; j < num; ++j) {
      const Vec p = exponential(load(scores + j * kStrip + i) * splat(scale) - new_m);
      store(scores + j * kStrip + i, p);
      sum = sum + p;
    }
    const Vec factor = exponential(old_m - new_m);  // 0 the first time, when old_m is -inf
    store(factors + i, factor);
    store(m + i, new_m);
    store(l + i, fma(load(l + i), factor, sum));
  }
}

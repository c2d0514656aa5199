// Decode attention in the latent space: every head reads the same cached rows, as keys whole, as values their first
// `rank` elements.
//
// Both products are blocks of the GEMM's kind, with heads in the lanes for the scores and in the rows for the sums, so
// the cached rows are read as they lie and nothing is transposed or summed across lanes.

constexpr int kAskSteps = 4;      // multiplications between two lines: a page's come in time for the next one

// step(i) for i in [0, n), a line asked for now and then.
template <class Step>
KERNEL_INLINE void steps_asking(int n, Ahead& ahead, Step step) {
  int i = 0;
  for (; i + kAskSteps <= n; i += kAskSteps) {
    ahead.ask(kAskStride);
    KERNEL_UNROLL for (int u = 0; u < kAskSteps; ++u) step(i + u);
  }
  for (; i < n; ++i) step(i);
}

constexpr int kScorePanel = 192;  // columns of the queries that stay in L1

// scores[j][lanes] (+)= sum over k of keys[j][k] * q[k][lanes], for Keys keys and Vecs vectors of heads.
template <int Keys, int Vecs>
KERNEL_INLINE void score_block(const float* keys, ptrdiff_t width, const float* q, int n, float* scores,
                               bool accumulate, Ahead& ahead) {
  Vec sum[Keys][Vecs];
  KERNEL_UNROLL for (int j = 0; j < Keys; ++j) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) {
      sum[j][i] = accumulate ? load(scores + j * kStrip + i * kLanes) : zeros();
    }
  }
  const float* rows[(Keys + 2) / 3];  // as in micro_kernel
  KERNEL_UNROLL for (int j = 0; j < Keys; j += 3) {
    rows[j / 3] = keys + j * width;
    asm("" : "+r"(rows[j / 3]));
  }
  steps_asking(n, ahead, [&](int k) {
    Vec right[Vecs];
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) right[i] = load(q + static_cast<ptrdiff_t>(k) * kStrip + i * kLanes);
    KERNEL_UNROLL for (int j = 0; j < Keys; ++j) {
      const Vec left = splat(rows[j / 3][j % 3 * width + k]);
      KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) sum[j][i] = fma(left, right[i], sum[j][i]);
    }
  });
  KERNEL_UNROLL for (int j = 0; j < Keys; ++j) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) store(scores + j * kStrip + i * kLanes, sum[j][i]);
  }
}

// scores[j][16 heads] of `num` keys, the first Vecs vectors of heads.
template <int Vecs>
void score_keys(const LatentBlock& job, float* scores, Ahead& ahead) {
  constexpr int kKeys = Vecs == kStripVecs ? kMicroRows : kMicroRows * kStripVecs / Vecs;
  const int width = job.rank + job.rope;
  const auto* rows = static_cast<const float*>(job.rows);
  for (int k = 0; k < width; k += kScorePanel) {
    const int n = smaller(kScorePanel, width - k);
    for (int j = 0; j < job.num; j += kKeys) {
      with_count<kKeys>(smaller(kKeys, job.num - j), [&](auto count) {
        score_block<decltype(count)::value, Vecs>(rows + static_cast<ptrdiff_t>(j) * width + k, width,
                                                  job.q + static_cast<ptrdiff_t>(k) * kStrip, n, scores + j * kStrip,
                                                  k > 0, ahead);
      });
    }
  }
}

// acc[h][0..Vecs * kLanes) += sum over j of p[j][h] * values[j][0..Vecs * kLanes), for Heads heads.
template <int Heads, int Vecs>
KERNEL_INLINE void value_block(const float* p, const float* values, ptrdiff_t width, int num, float* acc,
                               ptrdiff_t stride, Ahead& ahead) {
  Vec sum[Heads][Vecs];
  KERNEL_UNROLL for (int h = 0; h < Heads; ++h) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) sum[h][i] = load(acc + h * stride + i * kLanes);
  }
  steps_asking(num, ahead, [&](int j) {
    Vec right[Vecs];
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) right[i] = load(values + j * width + i * kLanes);
    KERNEL_UNROLL for (int h = 0; h < Heads; ++h) {
      const Vec left = splat(p[j * kStrip + h]);
      KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) sum[h][i] = fma(left, right[i], sum[h][i]);
    }
  });
  KERNEL_UNROLL for (int h = 0; h < Heads; ++h) {
    KERNEL_UNROLL for (int i = 0; i < Vecs; ++i) store(acc + h * stride + i * kLanes, sum[h][i]);
  }
}

// The same for any number of heads, in blocks as even as can be.
template <int Vecs>
void add_vecs(const float* p, int heads, const float* values, ptrdiff_t width, int num, float* acc, ptrdiff_t stride,
              Ahead& ahead) {
  constexpr int kHeadsAtOnce = smaller(micro_rows(Vecs), kStrip);
  for (int blocks = (heads + kHeadsAtOnce - 1) / kHeadsAtOnce; blocks > 0; --blocks) {
    const int block = (heads + blocks - 1) / blocks;
    with_count<kHeadsAtOnce>(block, [&](auto count) {
      value_block<decltype(count)::value, Vecs>(p, values, width, num, acc, stride, ahead);
    });
    p += block;
    acc += block * stride;
    heads -= block;
  }
}

// acc[h][0..rank) += sum over j of p[j][h] * rows[j][0..rank).
void add_values(const LatentBlock& job, const float* p, Ahead& ahead) {
  const int rank = job.rank;
  const int width = rank + job.rope;
  const auto* rows = static_cast<const float*>(job.rows);
  int col = 0;
  for (int strips = 0; col + kStrip <= rank; col += strips * kStrip) {
    strips = strips_together((rank - col) / kStrip);
    with_count<kMostStrips>(strips, [&](auto count) {
      add_vecs<decltype(count)::value * kStripVecs>(p, job.heads, rows + col, width, job.num, job.state.acc + col, rank, ahead);
    });
  }
  if (col == rank) return;
  float values[kPage * kStrip] = {};
  float sums[kStrip * kStrip] = {};
  for (int j = 0; j < job.num; ++j) {
    for (int i = col; i < rank; ++i) values[j * kStrip + i - col] = rows[static_cast<ptrdiff_t>(j) * width + i];
  }
  add_vecs<kStripVecs>(p, job.heads, values, kStrip, job.num, sums, kStrip, ahead);
  for (int h = 0; h < job.heads; ++h) {
    float* acc = job.state.acc + static_cast<ptrdiff_t>(h) * rank + col;
    add(acc, sums + h * kStrip, acc, rank - col);
  }
}

// One strip of heads.
template <int Vecs>
void attend_heads(const LatentBlock& job, Ahead& ahead) {
  float scores[kPage * kStrip];
  float factors[kStrip] = {};
  score_keys<Vecs>(job, scores, ahead);
  softmax_heads<Vecs>(scores, job.num, job.softmax_scale, job.state.m, job.state.l, factors);
  for (int h = 0; h < job.heads; ++h) {
    if (factors[h] != 1.0f) scale_row(job.state.acc + static_cast<ptrdiff_t>(h) * job.rank, factors[h], job.rank);
  }
  add_values(job, scores, ahead);
}

size_t head_strip_floats(int width) { return static_cast<size_t>(padded(width)) * kStrip; }

void pack_heads(const float* const* q, int num_heads, int width, bool /*bf16*/, float* out) {
  pack(q, num_heads, width, WeightType::f32, out);
}

void attend_latent(const LatentBlock& job) {
  const int width = job.rank + job.rope;
  Ahead ahead(job);
  LatentBlock strip = job;
  if (job.bf16) {
    bf16_to_f32(static_cast<const uint16_t*>(job.rows), job.scratch, job.num * width);
    strip.rows = job.scratch;
  }
  for (int left = job.heads; left > 0; left -= kStrip) {
    strip.heads = smaller(kStrip, left);
    if (strip.heads > kLanes) {
      attend_heads<kStripVecs>(strip, ahead);
    } else {
      attend_heads<1>(strip, ahead);
    }
    strip.q += head_strip_floats(width);
    strip.state.m += kStrip;
    strip.state.l += kStrip;
    strip.state.acc += static_cast<ptrdiff_t>(kStrip) * job.rank;
  }
}

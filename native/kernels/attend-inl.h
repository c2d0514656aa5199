// Decode attention in the latent space: every head reads the same cached rows, as keys whole, as values their first
// `rank` elements.

constexpr int kDotHeads = 4;  // 4 heads x 3 keys at a time: 12 sums
constexpr int kDotKeys = 3;
constexpr int kMaxHeads = 8;

// out[h][j] = q[h] . keys[j]. Callers repeat a pointer where there are fewer, so every product is summed in one way.
// Meanwhile the keys behind come closer.
KERNEL_INLINE void dot_block(const float* const (&q)[kDotHeads], const float* const (&keys)[kDotKeys], int n,
                             float (&out)[kDotHeads][kDotKeys]) {
  Sums<kDotHeads, kDotKeys> sums;
  clear(sums);
  for_lanes(n, [&](int i, auto part) {
    Vec key[kDotKeys];
    KERNEL_UNROLL for (int j = 0; j < kDotKeys; ++j) {
      key[j] = load(keys[j] + i, part);
      if (i % (kLine / 4) == 0) prefetch(keys[j] + i + static_cast<ptrdiff_t>(kDotKeys) * n);
    }
    KERNEL_UNROLL for (int h = 0; h < kDotHeads; ++h) {
      const Vec query = load(q[h] + i, part);
      KERNEL_UNROLL for (int j = 0; j < kDotKeys; ++j) sums.of[h][j] = fma(query, key[j], sums.of[h][j]);
    }
  });
  KERNEL_UNROLL for (int h = 0; h < kDotHeads; ++h) {
    KERNEL_UNROLL for (int j = 0; j < kDotKeys; ++j) out[h][j] = sum_lanes(sums.of[h][j]);
  }
}

// Heads inside keys: a few keys stay in L1 for all heads.
void score_keys(const float* q, int heads, const float* rows, int num, int width, float scale,
                float (&scores)[kMaxHeads][kPage]) {
  for (int j0 = 0; j0 < num; j0 += kDotKeys) {
    const float* keys[kDotKeys];
    for (int j = 0; j < kDotKeys; ++j) keys[j] = rows + static_cast<ptrdiff_t>(smaller(j0 + j, num - 1)) * width;
    for (int h0 = 0; h0 < heads; h0 += kDotHeads) {
      const float* queries[kDotHeads];
      for (int h = 0; h < kDotHeads; ++h) queries[h] = q + static_cast<ptrdiff_t>(smaller(h0 + h, heads - 1)) * width;
      float dots[kDotHeads][kDotKeys];
      dot_block(queries, keys, width, dots);
      for (int h = 0; h < smaller(kDotHeads, heads - h0); ++h) {
        for (int j = 0; j < smaller(kDotKeys, num - j0); ++j) scores[h0 + h][j0 + j] = dots[h][j] * scale;
      }
    }
  }
}

// One row of online softmax: scores become exp(score - m); returns what the sums so far must be multiplied by.
float softmax_row(float* scores, int num, float& m, float& l) {
  Vec largest = splat(-__builtin_inff());
  int i = 0;
  for (; i + kLanes <= num; i += kLanes) largest = max(largest, load(scores + i));
  float new_m = max_lane(largest);
  for (; i < num; ++i) new_m = new_m > scores[i] ? new_m : scores[i];
  new_m = new_m > m ? new_m : m;
  const Vec shift = splat(new_m);
  Vec sum = zeros();
  for (i = 0; i + kLanes <= num; i += kLanes) {
    const Vec p = exponential(load(scores + i) - shift);
    store(scores + i, p);
    sum = sum + p;
  }
  if (i < num) {
    store(scores + i, exponential(load(scores + i, Part{num - i}) - shift), Part{num - i});
    sum = sum + load(scores + i, Part{num - i});
  }
  float factor = 1.0f;
  if (new_m > m) {
    float lanes[kLanes];
    store(lanes, exponential(splat(m - new_m)));  // 0 the first time, when m is -inf
    factor = lanes[0];
  }
  m = new_m;
  l = l * factor + sum_lanes(sum);
  return factor;
}

// acc[h][0..rank) += sum over j of p[h][j] * rows[j][0..rank).
void add_values(const float* p, int heads, const float* rows, int num, int width, int rank, float* acc) {
  int col = 0;
  for (; col + kStrip <= rank; col += kStrip) multiply(p, kPage, heads, rows + col, width, num, acc + col, rank, true);
  if (col == rank) return;
  float values[kPage * kStrip] = {};
  float sums[kMaxHeads * kStrip];
  for (int j = 0; j < num; ++j) {
    for (int i = col; i < rank; ++i) values[j * kStrip + i - col] = rows[static_cast<ptrdiff_t>(j) * width + i];
  }
  multiply(p, kPage, heads, values, kStrip, num, sums, kStrip, false);
  for (int h = 0; h < heads; ++h) add(acc + h * rank + col, sums + h * kStrip, acc + h * rank + col, rank - col);
}

void attend_latent(const float* q, int heads, int rank, int rope, const float* rows, int num, float softmax_scale,
                   AttentionState state) {
  float scores[kMaxHeads][kPage];
  const int width = rank + rope;
  score_keys(q, heads, rows, num, width, softmax_scale, scores);
  for (int h = 0; h < heads; ++h) {
    const float factor = softmax_row(scores[h], num, state.m[h], state.l[h]);
    if (factor != 1.0f) scale_row(state.acc + static_cast<ptrdiff_t>(h) * rank, factor, rank);
  }
  add_values(scores[0], heads, rows, num, width, rank, state.acc);
}

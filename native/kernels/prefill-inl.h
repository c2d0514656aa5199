// Prefill attention of one head: a block of queries against a span of keys and values that are expanded already, a few
// pages at a time: score, fold into the online softmax, add up.

constexpr int kKeyBlock = 128;                    // keys scored before their values are added
constexpr int kScoreStride = kKeyBlock + kStrip;  // off powers of two, as kPanelStride

// One row of online softmax: scores become exp(score - m); returns what the sums so far must be multiplied by.
float softmax_row(float* scores, int num, float scale, float& m, float& l) {
  Vec largest = splat(-__builtin_inff());
  int i = 0;
  for (; i + kLanes <= num; i += kLanes) largest = max(largest, load(scores + i));
  float new_m = max_lane(largest);
  for (; i < num; ++i) new_m = new_m > scores[i] ? new_m : scores[i];
  new_m *= scale;
  new_m = new_m > m ? new_m : m;
  const Vec shift = splat(new_m);
  const Vec factor = splat(scale);
  Vec sum = zeros();
  for (i = 0; i + kLanes <= num; i += kLanes) {
    const Vec p = exponential(load(scores + i) * factor - shift);
    store(scores + i, p);
    sum = sum + p;
  }
  if (i < num) {
    store(scores + i, exponential(load(scores + i, Part{num - i}) * factor - shift), Part{num - i});
    sum = sum + load(scores + i, Part{num - i});
  }
  float rescale = 1.0f;
  if (new_m > m) {
    float lanes[kLanes];
    store(lanes, exponential(splat(m - new_m)));  // 0 the first time, when m is -inf
    rescale = lanes[0];
  }
  m = new_m;
  l = l * rescale + sum_lanes(sum);
  return rescale;
}

struct QueryScratch {
  float* queries;  // [num][head]
  float* sums;     // [num][v padded]
  float* scores;   // [num][kScoreStride]
  int v_padded;
};

constexpr int strips_of(int n) { return (n + kStrip - 1) / kStrip; }

QueryScratch lay_out(int head, int v, float* at) {
  const int v_padded = strips_of(v) * kStrip;
  float* sums = at + kQueryRows * strips_of(head) * kStrip;
  return {at, sums, sums + kQueryRows * v_padded, v_padded};
}

size_t attend_queries_scratch_floats(int head, int v) {
  return static_cast<size_t>(kQueryRows) * (strips_of(head) * kStrip + strips_of(v) * kStrip + kScoreStride);
}

// Rows one after the other: those of the caller lie a power of two apart and would share few cache sets.
void take_queries(const QueryBlock& job, const QueryScratch& scratch) {
  for (int i = 0; i < job.num; ++i) {
    __builtin_memcpy(scratch.queries + i * job.head, job.q + i * job.q_stride, job.head * sizeof(float));
    float* sums = scratch.sums + i * scratch.v_padded;
    __builtin_memset(sums, 0, scratch.v_padded * sizeof(float));
    if (job.first) {
      job.m[i] = -__builtin_inff();
      job.l[i] = 0.0f;
    } else {
      __builtin_memcpy(sums, job.out + i * job.out_stride, job.v * sizeof(float));
    }
  }
}

void put_sums(const QueryBlock& job, const QueryScratch& scratch) {
  for (int i = 0; i < job.num; ++i) {
    const float* sums = scratch.sums + i * scratch.v_padded;
    const Vec factor = splat(i < job.num_done ? 1.0f / job.l[i] : 1.0f);
    float* out = job.out + i * job.out_stride;
    for_lanes(job.v, [&](int k, auto part) { store(out + k, load(sums + k, part) * factor, part); });
  }
}

// Queries from `from` on against `num_keys` (<= kKeyBlock) keys from `key` on; query `from` sees the first `visible`
// (>= 1) of them, each next query one more.
void attend_keys(const QueryBlock& job, const QueryScratch& scratch, int from, int key, int num_keys, int visible) {
  const int num = job.num - from;
  const int used = smaller(visible + num - 1, num_keys);  // keys that any of these queries sees
  const int head = job.head;
  float* sums = scratch.sums + from * scratch.v_padded;
  const float* keys = job.keys + static_cast<ptrdiff_t>(key) * head;
  multiply(scratch.queries + from * head, head, num, head,
           {keys, kStrip, static_cast<ptrdiff_t>(kStrip) * head, scratch.scores, kScoreStride, kStrip}, strips_of(used), false);
  for (int i = 0; i < num; ++i) {
    float* scores = scratch.scores + i * kScoreStride;
    const int seen = smaller(visible + i, num_keys);
    const float factor = softmax_row(scores, seen, job.softmax_scale, job.m[from + i], job.l[from + i]);
    for (int j = seen; j < used; ++j) scores[j] = 0.0f;
    if (factor != 1.0f) scale_row(sums + i * scratch.v_padded, factor, scratch.v_padded);
  }
  const float* values = job.values + static_cast<ptrdiff_t>(key) * kStrip;
  multiply(scratch.scores, kScoreStride, num, used,
           {values, kStrip, kStrip * job.values_stride, sums, scratch.v_padded, kStrip}, strips_of(job.v), true);
}

void attend_queries(const QueryBlock& job) {
  const QueryScratch scratch = lay_out(job.head, job.v, job.scratch);
  take_queries(job, scratch);
  for (int key = 0; key < job.num_keys; key += kKeyBlock) {
    const int hidden = key - job.visible + 1;  // earlier queries do not see these keys
    const int from = hidden > 0 ? hidden : 0;
    if (from >= job.num) break;
    attend_keys(job, scratch, from, key, smaller(kKeyBlock, job.num_keys - key), job.visible + from - key);
  }
  put_sums(job, scratch);
}

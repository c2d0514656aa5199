// Prefill attention of one head, a page of 64 keys at a time: expand the page's latents to this head's keys and values,
// score a block of queries, fold the scores into the online softmax.
//
// Keys come out transposed, [nope + rope][16 keys] strips, because they are the packed side of the next product; so
// the page's latents go in transposed. All padding is in scratch.

constexpr int kQueryRows = 48;  // queries scored together
constexpr int kPageStrips = kPage / kStrip;

constexpr size_t aligned_floats(ptrdiff_t n) { return (static_cast<size_t>(n) + kStrip - 1) / kStrip * kStrip; }

struct PrefillShape {
  int tokens, nope, rope, v, rank;

  constexpr int head() const { return nope + rope; }
  constexpr int width() const { return rank + rope; }
  constexpr int v_strips() const { return (v + kStrip - 1) / kStrip; }
  constexpr int v_padded() const { return v_strips() * kStrip; }
  constexpr int key_stride() const { return rank + kStrip; }  // off powers of two, as kPanelStride
  constexpr ptrdiff_t value_strip() const { return static_cast<ptrdiff_t>(padded(rank)) * kStrip; }
  constexpr ptrdiff_t latent_strip() const { return static_cast<ptrdiff_t>(padded(width())) * kStrip; }
  constexpr ptrdiff_t key_strip() const { return static_cast<ptrdiff_t>(head()) * kStrip; }
};

struct PrefillScratch {
  float* queries;      // [tokens][head], softmax scale applied
  float* sums;         // [tokens][v padded]
  float* m;            // [tokens]
  float* l;            // [tokens]
  float* key_rows;     // [nope] rows of rank at key_stride
  float* value_rows;   // packed strips of 16 value rows
  float* page;         // [64][width]
  float* latents;      // 4 packed strips of 16 cached rows
  float* keys;         // 4 strips of [head][16 keys]
  float* values;       // strips of [64 keys][16]
  float* scores;       // [48][64]
};

// Lays scratch out from `at`; returns how many floats it takes.
size_t lay_out(const PrefillShape& shape, float* at, PrefillScratch& scratch) {
  size_t used = 0;
  const auto take = [&](ptrdiff_t n) {
    float* piece = at ? at + used : nullptr;
    used += aligned_floats(n);
    return piece;
  };
  const ptrdiff_t tokens = shape.tokens;
  scratch.queries = take(tokens * shape.head());
  scratch.sums = take(tokens * shape.v_padded());
  scratch.m = take(tokens);
  scratch.l = take(tokens);
  scratch.key_rows = take(static_cast<ptrdiff_t>(shape.nope) * shape.key_stride());
  scratch.value_rows = take(shape.v_strips() * shape.value_strip());
  scratch.page = take(static_cast<ptrdiff_t>(kPage) * shape.width());
  scratch.latents = take(kPageStrips * shape.latent_strip());
  scratch.keys = take(kPageStrips * shape.key_strip());
  scratch.values = take(static_cast<ptrdiff_t>(kPage) * shape.v_padded());
  scratch.scores = take(kQueryRows * kPage);
  return used;
}

size_t prefill_scratch_floats(int num_tokens, int nope_dim, int rope_dim, int v_dim, int rank) {
  PrefillScratch scratch;
  return lay_out({num_tokens, nope_dim, rope_dim, v_dim, rank}, nullptr, scratch);
}

// Packs up to 16 rows of n at `stride` from `rows`.
void pack_rows(const float* rows, ptrdiff_t stride, int num, int n, float* out) {
  const float* pointers[kStrip];
  for (int i = 0; i < num; ++i) pointers[i] = rows + i * stride;
  pack(pointers, num, n, out);
}

void start_queries(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch) {
  const int head = shape.head();
  const Vec scale = splat(job.softmax_scale);
  for (ptrdiff_t t = 0; t < job.num_tokens; ++t) {
    const float* from = job.q + t * job.q_stride;
    for_lanes(head, [&](int i, auto part) { store(scratch.queries + t * head + i, load(from + i, part) * scale, part); });
    scratch.m[t] = -__builtin_inff();
    scratch.l[t] = 0.0f;
  }
  __builtin_memset(scratch.sums, 0, static_cast<size_t>(job.num_tokens) * shape.v_padded() * sizeof(float));
}

template <class W>
void decode_head(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch) {
  for (int i = 0; i < shape.nope; ++i) {
    decode_run<W>(job.kv_b, job.key_row + i, 0, shape.rank, scratch.key_rows + static_cast<ptrdiff_t>(i) * shape.key_stride());
  }
  float* decoded = scratch.page;  // free until the first page
  for (int s = 0; s < shape.v_strips(); ++s) {
    const int num = smaller(kStrip, shape.v - s * kStrip);
    for (int i = 0; i < num; ++i) {
      decode_run<W>(job.kv_b, job.key_row + shape.nope + s * kStrip + i, 0, shape.rank, decoded + static_cast<ptrdiff_t>(i) * shape.rank);
    }
    pack_rows(decoded, shape.rank, num, shape.rank, scratch.value_rows + s * shape.value_strip());
  }
}

// This head's keys and values of the first `num` tokens of page `index`.
void expand_page(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch, int index, int num) {
  const float* rows = static_cast<const float*>(job.pages[index]);
  if (job.bf16_cache) {
    bf16_to_f32(static_cast<const uint16_t*>(job.pages[index]), scratch.page, num * shape.width());
    rows = scratch.page;
  }
  for (int s = 0; s * kStrip < num; ++s) {
    float* latents = scratch.latents + s * shape.latent_strip();
    float* keys = scratch.keys + s * shape.key_strip();
    pack_rows(rows + static_cast<ptrdiff_t>(s) * kStrip * shape.width(), shape.width(), smaller(kStrip, num - s * kStrip),
              shape.width(), latents);
    multiply(scratch.key_rows, shape.key_stride(), shape.nope, latents, kStrip, shape.rank, keys, kStrip, false);
    __builtin_memcpy(keys + static_cast<ptrdiff_t>(shape.nope) * kStrip, latents + static_cast<ptrdiff_t>(shape.rank) * kStrip,
                     static_cast<size_t>(shape.rope) * kStrip * sizeof(float));
  }
  for (int s = 0; s < shape.v_strips(); ++s) {
    multiply(rows, shape.width(), num, scratch.value_rows + s * shape.value_strip(), kStrip, shape.rank,
             scratch.values + static_cast<ptrdiff_t>(s) * kPage * kStrip, kStrip, false);
  }
}

// Queries [t0, t0 + num) against the page; query t0 sees its first `visible` (>= 1) keys, each next query one more,
// up to `keys`.
void attend_block(const PrefillShape& shape, const PrefillScratch& scratch, int t0, int num, int visible, int keys) {
  const int used = smaller(visible + num - 1, keys);  // keys that any query of the block sees
  const float* queries = scratch.queries + static_cast<ptrdiff_t>(t0) * shape.head();
  float* sums = scratch.sums + static_cast<ptrdiff_t>(t0) * shape.v_padded();
  for (int s = 0; s * kStrip < used; ++s) {
    multiply(queries, shape.head(), num, scratch.keys + s * shape.key_strip(), kStrip, shape.head(),
             scratch.scores + s * kStrip, kPage, false);
  }
  for (int i = 0; i < num; ++i) {
    float* scores = scratch.scores + i * kPage;
    const int seen = smaller(visible + i, keys);
    const float factor = softmax_row(scores, seen, scratch.m[t0 + i], scratch.l[t0 + i]);
    for (int j = seen; j < used; ++j) scores[j] = 0.0f;
    if (factor != 1.0f) scale_row(sums + static_cast<ptrdiff_t>(i) * shape.v_padded(), factor, shape.v_padded());
  }
  for (int s = 0; s < shape.v_strips(); ++s) {
    multiply(scratch.scores, kPage, num, scratch.values + static_cast<ptrdiff_t>(s) * kPage * kStrip, kStrip, used,
             sums + s * kStrip, shape.v_padded(), true);
  }
}

void finish_queries(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch) {
  for (ptrdiff_t t = 0; t < job.num_tokens; ++t) {
    const float* sums = scratch.sums + t * shape.v_padded();
    const Vec inverse = splat(1.0f / scratch.l[t]);
    for_lanes(shape.v, [&](int i, auto part) { store(job.out + t * job.out_stride + i, load(sums + i, part) * inverse, part); });
  }
}

void prefill_head(const PrefillHead& job) {
  const PrefillShape shape{job.num_tokens, job.nope_dim, job.rope_dim, job.v_dim, job.rank};
  PrefillScratch scratch;
  lay_out(shape, job.scratch, scratch);
  start_queries(job, shape, scratch);
  with_weights(job.kv_b.type, [&](auto weights) { decode_head<decltype(weights)>(job, shape, scratch); });
  const int cached = job.start + job.num_tokens;
  for (int first = 0; first < cached; first += kPage) {
    const int keys = smaller(kPage, cached - first);
    expand_page(job, shape, scratch, first / kPage, keys);
    const int from = first > job.start ? first - job.start : 0;  // earlier queries do not see this page
    for (int t = from; t < job.num_tokens; t += kQueryRows) {
      attend_block(shape, scratch, t, smaller(kQueryRows, job.num_tokens - t), smaller(job.start + t - first + 1, kPage), keys);
    }
  }
  finish_queries(job, shape, scratch);
}

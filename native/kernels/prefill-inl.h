// Prefill attention of one head, a page of 64 keys at a time: expand the page's latents to this head's keys and values,
// score a block of queries, fold the scores into the online softmax.
//
// Keys come out transposed, [nope + rope][16 keys] strips, because they are the packed side of the next product; so
// the page's latents go in transposed. All padding is in scratch.

constexpr int kQueryRows = 48;  // queries scored together
constexpr int kPageStrips = kPage / kStrip;
constexpr int kSpan = 4;        // pages expanded before queries are read: long prompts' queries and sums outgrow L2

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
  constexpr ptrdiff_t key_page() const { return kPageStrips * key_strip(); }
  constexpr ptrdiff_t value_page() const { return static_cast<ptrdiff_t>(kPage) * v_padded(); }
};

struct PrefillScratch {
  float* queries;      // [tokens][head], softmax scale applied
  float* sums;         // [tokens][v padded]
  float* m;            // [tokens]
  float* l;            // [tokens]
  float* key_rows;     // [nope] rows of rank at key_stride
  float* value_rows;   // packed strips of 16 value rows
  float* page;         // [64][width]
  float* latents;      // one packed strip of 16 cached rows
  float* keys;         // for each page of a span, 4 strips of [head][16 keys]
  float* values;       // for each page of a span, strips of [64 keys][16]
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
  scratch.latents = take(shape.latent_strip());
  scratch.keys = take(kSpan * shape.key_page());
  scratch.values = take(kSpan * shape.value_page());
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
    float* to = scratch.queries + t * head;
    for_lanes(head, [&](int i, auto part) { store(to + i, load(from + i, part) * scale, part); });
    scratch.m[t] = -__builtin_inff();
    scratch.l[t] = 0.0f;
  }
  __builtin_memset(scratch.sums, 0, static_cast<size_t>(job.num_tokens) * shape.v_padded() * sizeof(float));
}

template <class W>
void decode_head(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch) {
  for (int i = 0; i < shape.nope; ++i) {
    float* row = scratch.key_rows + static_cast<ptrdiff_t>(i) * shape.key_stride();
    decode_run<W>(job.kv_b, job.key_row + i, 0, shape.rank, row);
  }
  float* decoded = scratch.page;  // free until the first page
  for (int s = 0; s < shape.v_strips(); ++s) {
    const int num = smaller(kStrip, shape.v - s * kStrip);
    const int row = job.key_row + shape.nope + s * kStrip;
    for (int i = 0; i < num; ++i) decode_run<W>(job.kv_b, row + i, 0, shape.rank, decoded + i * shape.rank);
    pack_rows(decoded, shape.rank, num, shape.rank, scratch.value_rows + s * shape.value_strip());
  }
}

// This head's keys and values of the first `num` tokens of page `index`, to the page's place in its span.
void expand_page(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch, int index, int num) {
  const int width = shape.width();
  const float* rows = static_cast<const float*>(job.pages[index]);
  if (job.bf16_cache) {
    bf16_to_f32(static_cast<const uint16_t*>(job.pages[index]), scratch.page, num * width);
    rows = scratch.page;
  }
  float* keys = scratch.keys + index % kSpan * shape.key_page();
  float* latents = scratch.latents;
  for (int k = 0; k < num; k += kStrip) {
    pack_rows(rows + static_cast<ptrdiff_t>(k) * width, width, smaller(kStrip, num - k), width, latents);
    multiply(scratch.key_rows, shape.key_stride(), shape.nope, latents, kStrip, shape.rank, keys, kStrip, false);
    const size_t rope_bytes = static_cast<size_t>(shape.rope) * kStrip * sizeof(float);
    __builtin_memcpy(keys + shape.nope * kStrip, latents + static_cast<ptrdiff_t>(shape.rank) * kStrip, rope_bytes);
    keys += shape.key_strip();
  }
  float* values = scratch.values + index % kSpan * shape.value_page();
  for (int s = 0; s < shape.v_strips(); ++s) {
    multiply(rows, width, num, scratch.value_rows + s * shape.value_strip(), kStrip, shape.rank,
             values + s * kPage * kStrip, kStrip, false);
  }
}

// Queries [t0, t0 + num) against page `index`; query t0 sees its first `visible` (>= 1) keys, each next query one more,
// up to `num_keys`.
void attend_page(const PrefillShape& shape, const PrefillScratch& scratch, int t0, int num, int index, int visible,
                 int num_keys) {
  const int used = smaller(visible + num - 1, num_keys);  // keys that any of these queries sees
  const float* queries = scratch.queries + static_cast<ptrdiff_t>(t0) * shape.head();
  const float* keys = scratch.keys + index % kSpan * shape.key_page();
  const float* values = scratch.values + index % kSpan * shape.value_page();
  float* sums = scratch.sums + static_cast<ptrdiff_t>(t0) * shape.v_padded();
  for (int s = 0; s * kStrip < used; ++s) {
    multiply(queries, shape.head(), num, keys + s * shape.key_strip(), kStrip, shape.head(),
             scratch.scores + s * kStrip, kPage, false);
  }
  for (int i = 0; i < num; ++i) {
    float* scores = scratch.scores + i * kPage;
    const int seen = smaller(visible + i, num_keys);
    const float factor = softmax_row(scores, seen, scratch.m[t0 + i], scratch.l[t0 + i]);
    for (int j = seen; j < used; ++j) scores[j] = 0.0f;
    if (factor != 1.0f) scale_row(sums + static_cast<ptrdiff_t>(i) * shape.v_padded(), factor, shape.v_padded());
  }
  for (int s = 0; s < shape.v_strips(); ++s) {
    multiply(scratch.scores, kPage, num, values + s * kPage * kStrip, kStrip, used, sums + s * kStrip,
             shape.v_padded(), true);
  }
}

// All queries against the pages of positions [first, end), which share a span.
void attend_span(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch, int first, int end) {
  for (int t0 = 0; t0 < job.num_tokens; t0 += kQueryRows) {
    const int t1 = smaller(t0 + kQueryRows, job.num_tokens);
    for (int key = first; key < end; key += kPage) {
      const int from = t0 > key - job.start ? t0 : key - job.start;  // earlier queries do not see this page
      if (from >= t1) break;
      attend_page(shape, scratch, from, t1 - from, key / kPage, smaller(job.start + from - key + 1, kPage),
                  smaller(kPage, end - key));
    }
  }
}

void finish_queries(const PrefillHead& job, const PrefillShape& shape, const PrefillScratch& scratch) {
  for (ptrdiff_t t = 0; t < job.num_tokens; ++t) {
    const float* sums = scratch.sums + t * shape.v_padded();
    const Vec inverse = splat(1.0f / scratch.l[t]);
    float* out = job.out + t * job.out_stride;
    for_lanes(shape.v, [&](int i, auto part) { store(out + i, load(sums + i, part) * inverse, part); });
  }
}

void prefill_head(const PrefillHead& job) {
  const PrefillShape shape{job.num_tokens, job.nope_dim, job.rope_dim, job.v_dim, job.rank};
  PrefillScratch scratch;
  lay_out(shape, job.scratch, scratch);
  start_queries(job, shape, scratch);
  with_weights(job.kv_b.type, [&](auto weights) { decode_head<decltype(weights)>(job, shape, scratch); });
  const int cached = job.start + job.num_tokens;
  for (int first = 0; first < cached && !job.stopped(job.stop_context); first += kSpan * kPage) {
    const int end = smaller(first + kSpan * kPage, cached);
    for (int key = first; key < end; key += kPage) {
      expand_page(job, shape, scratch, key / kPage, smaller(kPage, end - key));
    }
    attend_span(job, shape, scratch, first, end);
  }
  finish_queries(job, shape, scratch);
}

// Multi-head latent attention over the paged latent cache: each session's new tokens take the form that costs less.
#include "attention.h"

#include <algorithm>

namespace localmoe {

const float* Attention::rows(const Run& run, const int32_t* table, int first, int num, float* page) const {
  const char* rows = cache.row(table, first);
  if (!cache.bf16) return reinterpret_cast<const float*>(rows);
  run.kernels->bf16_to_f32(reinterpret_cast<const uint16_t*>(rows), page, num * width());
  return page;
}

namespace {

enum Stage { kAbsorb, kPackQueries, kAttend, kExpand, kPackLatents, kKeysValues, kQueries, kNumStages };

// Few tokens read kv_b as GEMV does, at the speed of memory; more count their multiply-adds.
bool absorbed_is_cheaper(const Segment& segment, const MlaShape& shape) {
  if (segment.count <= kMaxGemvTokens) return true;
  const double count = segment.count;
  const double pairs = count * (segment.start + (count + 1) / 2);  // of a query and a key that it sees
  const double kv_b = static_cast<double>(shape.rank) * (shape.nope_dim + shape.v_dim);
  const double absorbed = pairs * (2 * shape.rank + shape.rope_dim) + count * kv_b;
  const double expanded = pairs * (shape.nope_dim + shape.rope_dim + shape.v_dim) + (segment.start + count) * kv_b;
  return absorbed < expanded;
}

class MlaAttention : public Op {
 public:
  explicit MlaAttention(const Attention& of) : of_(of) {}

  int num_stages() const override { return kNumStages; }

  int begin(int stage, Run& run) override {
    switch (stage) {
      case kAbsorb:
        split(run);
        return absorbed_.begin_absorb(run);
      case kPackQueries:
        return absorbed_.begin_pack();
      case kAttend:
        return absorbed_.begin_attend();
      case kExpand:
        return absorbed_.begin_expand();
      case kPackLatents:
        return expanded_.begin_pack(run);
      case kKeysValues:
        return expanded_.begin_keys_values();
      default:
        return expanded_.begin_queries();
    }
  }

  int after(int stage) override {
    if (stage == kAttend && absorbed_.next_wave()) return kAttend;
    if (stage == kQueries) expanded_.next_span();
    if (stage == kExpand || stage == kQueries) return expanded_.done() ? kNumStages : kPackLatents;
    return stage + 1;
  }

  void run_tile(int stage, int tile, int worker, Run& run) override {
    switch (stage) {
      case kAbsorb:
        return absorbed_.absorb(run, tile);
      case kPackQueries:
        return absorbed_.pack(run, tile);
      case kAttend:
        return absorbed_.attend(run, tile, worker);
      case kExpand:
        return absorbed_.expand(run, tile, worker);
      case kPackLatents:
        return expanded_.pack(run, tile, worker);
      case kKeysValues:
        return expanded_.make_keys_values(run, tile, worker);
      default:
        return expanded_.attend(run, tile, worker);
    }
  }

  size_t scratch_floats(int max_tokens, const Kernels& kernels) const override {
    return std::max(absorbed_.scratch_floats(max_tokens, kernels), expanded_.scratch_floats(max_tokens, kernels));
  }

  size_t worker_floats(int /*max_tokens*/, const Kernels& kernels) const override {
    return std::max(absorbed_.worker_floats(), expanded_.worker_floats(kernels));
  }

 private:
  void split(const Run& run) {
    absorbed_.clear();
    expanded_.clear();
    for (const Segment& segment : run.segments) {
      if (absorbed_.has_room(segment.count) && absorbed_is_cheaper(segment, of_.shape)) {
        absorbed_.add(segment);
      } else {
        expanded_.add(segment);
      }
    }
  }

  const Attention of_;
  AbsorbedAttention absorbed_{of_};
  ExpandedAttention expanded_{of_};
};

}  // namespace

std::unique_ptr<Op> make_mla_attention(Rows q, LatentPages cache, const Matrix& kv_b, MlaShape shape, Rows out) {
  return std::make_unique<MlaAttention>(Attention{q, cache, kv_b, shape, out});
}

}  // namespace localmoe

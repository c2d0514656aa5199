// Ops that treat every token's row by itself.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace localmoe {
namespace {

// Below this many floats a stage costs more in waiting than it gains from a second worker.
constexpr int kInlineFloats = 16384;
constexpr int kTileFloats = 32768;

class RowOp : public Op {
 public:
  explicit RowOp(Rows shape) : shape_(shape) {}

  int begin(int /*stage*/, Run& run) override {
    const int rows = shape_.count(run);
    rows_per_tile_ = std::max(1, kTileFloats / std::max(1, shape_.width));
    if (static_cast<int64_t>(rows) * shape_.width > kInlineFloats) return ceil_div(rows, rows_per_tile_);
    for (int i = 0; i < rows; ++i) apply(run, i);
    return 0;
  }

  void run_tile(int /*stage*/, int tile, int /*worker*/, Run& run) override {
    const int end = std::min(shape_.count(run), (tile + 1) * rows_per_tile_);
    for (int i = tile * rows_per_tile_; i < end; ++i) apply(run, i);
  }

 protected:
  virtual void apply(Run& run, int row) = 0;

 private:
  Rows shape_;
  int rows_per_tile_ = 1;
};

class Embedding : public RowOp {
 public:
  Embedding(const Matrix& table, Rows out) : RowOp(out), table_(table), out_(out) {}

 private:
  void apply(Run& run, int row) override {
    const size_t first = static_cast<size_t>(run.ids[row]) * static_cast<size_t>(table_.cols);
    if (table_.type == WeightType::f32) {
      std::memcpy(out_.row(run, row), static_cast<const float*>(table_.data) + first, sizeof(float) * static_cast<size_t>(table_.cols));
    } else {
      run.kernels->bf16_to_f32(static_cast<const uint16_t*>(table_.data) + first, out_.row(run, row), table_.cols);
    }
  }
  Matrix table_;
  Rows out_;
};

class Widen : public RowOp {
 public:
  Widen(Rows x, Rows out) : RowOp(out), x_(x), out_(out) {}

 private:
  void apply(Run& run, int row) override {
    run.kernels->bf16_to_f32(reinterpret_cast<const uint16_t*>(x_.row(run, row)), out_.row(run, row), out_.width);
  }
  Rows x_, out_;
};

class RmsNorm : public RowOp {
 public:
  RmsNorm(Rows x, const float* weight, float eps, Rows out) : RowOp(out), x_(x), weight_(weight), eps_(eps), out_(out) {}

 private:
  void apply(Run& run, int row) override {
    run.kernels->rms_norm(x_.row(run, row), weight_, eps_, out_.row(run, row), out_.width);
  }
  Rows x_;
  const float* weight_;
  float eps_;
  Rows out_;
};

class Add : public RowOp {
 public:
  Add(Rows x, Rows y, Rows out) : RowOp(out), x_(x), y_(y), out_(out) {}

 private:
  void apply(Run& run, int row) override {
    run.kernels->add(x_.row(run, row), y_.row(run, row), out_.row(run, row), out_.width);
  }
  Rows x_, y_, out_;
};

class SiluMul : public RowOp {
 public:
  SiluMul(Rows gate, Rows up, Rows out) : RowOp(out), gate_(gate), up_(up), out_(out) {}

 private:
  void apply(Run& run, int row) override {
    run.kernels->silu_mul(gate_.row(run, row), up_.row(run, row), out_.row(run, row), out_.width);
  }
  Rows gate_, up_, out_;
};

class Rope : public RowOp {
 public:
  Rope(Rows x, int table, bool interleaved, int head_dim, int rope_dim)
      : RowOp(x), x_(x), table_(table), head_dim_(head_dim), half_(rope_dim / 2),
        pair_stride_(interleaved ? 2 : 1), pair_distance_(interleaved ? 1 : half_) {}

 private:
  void apply(Run& run, int row) override {
    const RopeTable& table = (*run.ropes)[static_cast<size_t>(table_)];
    const float* cos = table.cos.data() + static_cast<ptrdiff_t>(row) * half_;
    const float* sin = table.sin.data() + static_cast<ptrdiff_t>(row) * half_;
    for (int head = 0; head < x_.width / head_dim_; ++head) {
      float* x = x_.row(run, row) + (head + 1) * head_dim_ - 2 * half_;
      for (int i = 0; i < half_; ++i) {
        float& a = x[i * pair_stride_];
        float& b = x[i * pair_stride_ + pair_distance_];
        const float rotated = a * cos[i] - b * sin[i];
        b = b * cos[i] + a * sin[i];
        a = rotated;
      }
    }
  }
  Rows x_;
  int table_, head_dim_, half_, pair_stride_, pair_distance_;
};

class Select : public RowOp {
 public:
  Select(Rows x, Rows out) : RowOp(out), x_(x), out_(out) {}

 private:
  void apply(Run& run, int row) override {
    const float* from = x_.row(run, run.selected[static_cast<size_t>(row)]);
    std::memcpy(out_.row(run, row), from, sizeof(float) * static_cast<size_t>(out_.width));
  }
  Rows x_, out_;
};

class AppendLatent : public RowOp {
 public:
  AppendLatent(LatentPages cache, Rows latent, Rows key) : RowOp(latent), cache_(cache), latent_(latent), key_(key) {}

 private:
  void apply(Run& run, int row) override {
    const Segment& segment = run.segments[static_cast<size_t>(run.segment_of[static_cast<size_t>(row)])];
    char* to = cache_.row(segment.table, run.positions[static_cast<size_t>(row)]);
    write(run, latent_.row(run, row), latent_.width, to);
    write(run, key_.row(run, row), key_.width, to + static_cast<size_t>(latent_.width) * (cache_.bf16 ? 2 : 4));
  }
  void write(Run& run, const float* from, int n, char* to) const {
    if (cache_.bf16) {
      run.kernels->f32_to_bf16(from, reinterpret_cast<uint16_t*>(to), n);
    } else {
      std::memcpy(to, from, sizeof(float) * static_cast<size_t>(n));
    }
  }
  LatentPages cache_;
  Rows latent_, key_;
};

}  // namespace

char* LatentPages::row(const int32_t* table, int position) const {
  const size_t index = static_cast<size_t>(table[position / kPage]) * kPage + static_cast<size_t>(position % kPage);
  return static_cast<char*>(data) + index * row_bytes();
}

std::unique_ptr<Op> make_embedding(const Matrix& table, Rows out) { return std::make_unique<Embedding>(table, out); }
std::unique_ptr<Op> make_rms_norm(Rows x, const float* weight, float eps, Rows out) {
  return std::make_unique<RmsNorm>(x, weight, eps, out);
}
std::unique_ptr<Op> make_add(Rows x, Rows y, Rows out) { return std::make_unique<Add>(x, y, out); }
std::unique_ptr<Op> make_silu_mul(Rows gate, Rows up, Rows out) { return std::make_unique<SiluMul>(gate, up, out); }
std::unique_ptr<Op> make_rope(Rows x, int table, bool interleaved, int head_dim, int rope_dim) {
  return std::make_unique<Rope>(x, table, interleaved, head_dim, rope_dim);
}
std::unique_ptr<Op> make_widen(Rows x, Rows out) { return std::make_unique<Widen>(x, out); }
std::unique_ptr<Op> make_select(Rows x, Rows out) { return std::make_unique<Select>(x, out); }
std::unique_ptr<Op> make_append_latent(LatentPages cache, Rows latent, Rows key) {
  return std::make_unique<AppendLatent>(cache, latent, key);
}

}  // namespace localmoe

// y = x W^T: GEMV for few rows, GEMM over packed strips of 16 rows beyond.
#include <algorithm>
#include <array>

#include "ops.h"

namespace localmoe {

int gemv_tile_rows(const Matrix& w, int num_workers, int step) {
  const int bytes = w.cols * (w.type == WeightType::fp8 ? 1 : w.type == WeightType::bf16 ? 2 : 4);
  const int by_bytes = kTileBytes / std::max(1, bytes);
  const int by_workers = w.rows / std::max(1, 4 * num_workers);
  return std::max(1, ceil_div(std::min(by_bytes, by_workers), step)) * step;
}

int gemm_tile_strips(const Matrix& w) {
  constexpr int64_t kMultiplyAdds = 8'000'000;  // about 200 us at 40 GMAC/s
  return std::max(4, static_cast<int>(kMultiplyAdds / (int64_t{kGemmRows} * kStrip * std::max(1, w.cols))));
}

namespace {

class LinearOp : public Op {
 public:
  LinearOp(Rows x, const Matrix& w, Rows out) : x_(x), w_(w), out_(out), tile_strips_(gemm_tile_strips(w)) {}

  int num_stages() const override { return 2; }

  int begin(int stage, Run& run) override {
    const int rows = x_.count(run);
    gemv_ = rows <= run.kernels->gemv_tokens(w_.type);
    if (stage == 0) return begin_operand(run, rows);
    if (gemv_) {
      tile_rows_ = gemv_tile_rows(w_, run.num_workers, 4);
      return ceil_div(w_.rows, tile_rows_);
    }
    return ceil_div(w_.rows, kGemmRows) * ceil_div(ceil_div(rows, kStrip), strips_of_tile(run));
  }

  void run_tile(int stage, int tile, int worker, Run& run) override {
    if (stage == 0) {
      make_operand(run, tile);
    } else if (gemv_) {
      gemv_tile(run, tile);
    } else {
      gemm_tile(run, tile, worker);
    }
  }

  size_t scratch_floats(int max_tokens, const Kernels& kernels) const override {
    const size_t rows = static_cast<size_t>(std::min(max_tokens, kMaxGemvTokens));
    const size_t strips = static_cast<size_t>(ceil_div(max_tokens, kStrip));
    return std::max(rows * static_cast<size_t>(padded(w_.cols)), strips * kernels.strip_floats(w_.cols, w_.type));
  }
  size_t worker_floats(int /*max_tokens*/, const Kernels& kernels) const override {
    return kernels.gemm_scratch_floats() + static_cast<size_t>(tile_strips_) * kGemmRows * kStrip;
  }

 private:
  int strips_of_tile(const Run& run) const { return std::min(tile_strips_, run.kernels->strips_kept(w_.cols, w_.type)); }

  int begin_operand(Run& run, int rows) {
    if (!gemv_) return ceil_div(rows, kStrip);
    if (rows * w_.cols > 32768) return rows;
    for (int i = 0; i < rows; ++i) make_operand(run, i);
    return 0;
  }

  void make_operand(Run& run, int tile) {
    if (gemv_) {
      const size_t width = static_cast<size_t>(padded(w_.cols));
      run.kernels->gemv_prepare(x_.row(run, tile), w_.cols, w_.type, run.scratch + width * static_cast<size_t>(tile));
      return;
    }
    std::array<const float*, kStrip> x{};
    const int n = std::min(kStrip, x_.count(run) - tile * kStrip);
    for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = x_.row(run, tile * kStrip + i);
    run.kernels->pack(x.data(), n, w_.cols, w_.type, run.scratch + run.kernels->strip_floats(w_.cols, w_.type) * static_cast<size_t>(tile));
  }

  void gemv_tile(Run& run, int tile) {
    std::array<const float*, kMaxGemvTokens> x{};
    std::array<float*, kMaxGemvTokens> y{};
    const int rows = x_.count(run);
    for (int i = 0; i < rows; ++i) {
      x[static_cast<size_t>(i)] = run.scratch + static_cast<size_t>(padded(w_.cols)) * static_cast<size_t>(i);
      y[static_cast<size_t>(i)] = out_.row(run, i);
    }
    const int row0 = tile * tile_rows_;
    run.kernels->gemv(w_, row0, std::min(w_.rows, row0 + tile_rows_), x.data(), rows, y.data());
  }

  void gemm_tile(Run& run, int tile, int worker) {
    const int blocks = ceil_div(w_.rows, kGemmRows);
    const int row0 = tile % blocks * kGemmRows;
    const int row1 = std::min(w_.rows, row0 + kGemmRows);
    const int most_strips = strips_of_tile(run);
    const int strip0 = tile / blocks * most_strips;
    const int strips = std::min(most_strips, ceil_div(x_.count(run), kStrip) - strip0);
    const size_t strip_floats = run.kernels->strip_floats(w_.cols, w_.type);
    float* c = run.scratch_of(worker) + run.kernels->gemm_scratch_floats();
    constexpr ptrdiff_t kOut = kGemmRows * kStrip;
    const int tokens = std::min(strips * kStrip, x_.count(run) - strip0 * kStrip);
    run.kernels->gemm(w_, row0, row1, run.scratch + strip_floats * static_cast<size_t>(strip0), tokens, c, kOut, run.scratch_of(worker));
    for (int s = 0; s < strips; ++s) {
      std::array<float*, kStrip> y{};
      const int first = (strip0 + s) * kStrip;
      const int n = std::min(kStrip, x_.count(run) - first);
      for (int i = 0; i < n; ++i) y[static_cast<size_t>(i)] = out_.row(run, first + i);
      run.kernels->unpack(c + s * kOut, row1 - row0, n, y.data(), row0);
    }
  }

  Rows x_;
  Matrix w_;
  Rows out_;
  int tile_strips_;
  bool gemv_ = true;
  int tile_rows_ = 4;
};

}  // namespace

std::unique_ptr<Op> make_linear(Rows x, const Matrix& w, Rows out) { return std::make_unique<LinearOp>(x, w, out); }

}  // namespace localmoe

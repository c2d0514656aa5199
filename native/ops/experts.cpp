// The routed experts of a layer, each read in place from the one copy.
//
// Tokens are sorted by expert into slots (slots.h). The routing weight is folded into the hidden activations, so `down` only adds up.
// Runs of up to 8 tokens add straight into the output rows; longer ones write one row per slot and sum them at the end.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops.h"
#include "slots.h"

namespace localmoe {

Matrix ExpertBlob::at(const ExpertMatrix& m, int expert) const {
  const uint8_t* base = data + static_cast<size_t>(expert) * stride;
  Matrix matrix = m.shape;
  matrix.data = base + m.offset;
  if (matrix.type == WeightType::fp8) matrix.scale = reinterpret_cast<const float*>(base + m.scale_offset);
  return matrix;
}

namespace {

enum Stage { kOperand, kGateUp, kDown, kSum, kNumStages };

constexpr int kMaxTileRows = 256;  // rows of a GEMV tile: bounds the workers' scratch
constexpr ptrdiff_t kTile = kGemmRows * kStrip;

// Some strips of one chosen expert (none: the GEMV path) and its first tile in the current stage.
struct Unit {
  int used;
  int strip0;
  int strips;
  int first_tile;
};

class ExpertsOp : public Op {
 public:
  ExpertsOp(Rows x, RoutingRows routing, const ExpertBlob& blob, Rows out)
      : x_(x), routing_(routing), blob_(blob), out_(out), hidden_(blob.gate.shape.cols), inter_(blob.gate.shape.rows) {}

  int num_stages() const override { return kNumStages; }

  int begin(int stage, Run& run) override {
    switch (stage) {
      case kOperand:
        rows_ = x_.count(run);
        direct_ = rows_ <= kMaxGemvTokens;
        slots_.sort(run, routing_, rows_, blob_.num_experts);
        lay_out(run);
        return begin_operand(run);
      case kGateUp:
        tile_rows_ = std::min(kMaxTileRows, gemv_tile_rows(blob_.gate.shape, run.num_workers, 32));
        return plan_tiles(inter_, blob_.gate.shape);
      case kDown:
        tile_rows_ = direct_ ? direct_tile_rows(run) : std::min(kMaxTileRows, gemv_tile_rows(blob_.down.shape, run.num_workers, 8));
        return direct_ ? ceil_div(hidden_, tile_rows_) : plan_tiles(hidden_, blob_.down.shape);
      default:
        return direct_ ? 0 : rows_;
    }
  }

  void run_tile(int stage, int tile, int worker, Run& run) override {
    if (stage == kOperand) {
      make_operand(run, tile);
    } else if (stage == kSum) {
      sum(run, tile);
    } else if (stage == kDown && direct_) {
      down_direct(run, tile, worker);
    } else {
      const auto after = std::upper_bound(units_.begin(), units_.end(), tile, [](int t, const Unit& u) { return t < u.first_tile; });
      const Unit& unit = *(after - 1);
      const int block = tile - unit.first_tile;
      if (stage == kGateUp) {
        unit.strips == 0 ? gate_up_gemv(run, unit, block, worker) : gate_up_gemm(run, unit, block, worker);
      } else {
        unit.strips == 0 ? down_gemv(run, unit, block) : down_gemm(run, unit, block, worker);
      }
    }
  }

  size_t scratch_floats(int max_tokens) const override {
    const size_t rows = static_cast<size_t>(max_tokens);
    const size_t slots = rows * static_cast<size_t>(routing_.top_k);
    return rows * x_floats() + slots * h_floats() + static_cast<size_t>(Slots::max_strips(max_tokens * routing_.top_k, blob_.num_experts)) * kStrip * (x_floats() + h_floats()) +
           slots * static_cast<size_t>(hidden_);
  }

  size_t worker_floats(int /*max_tokens*/, const Kernels& kernels) const override {
    const size_t strips = static_cast<size_t>(std::max(gemm_tile_strips(blob_.gate.shape), gemm_tile_strips(blob_.down.shape)));
    return std::max<size_t>(kernels.gemm_scratch_floats() + 2 * strips * kTile, 2 * kMaxGemvTokens * kMaxTileRows);
  }

 private:
  size_t x_floats() const { return static_cast<size_t>(padded(hidden_)); }
  size_t h_floats() const { return static_cast<size_t>(padded(inter_)); }
  int num_slots() const { return rows_ * routing_.top_k; }

  void lay_out(const Run& run) {
    x_rows_ = run.scratch;
    h_rows_ = x_rows_ + static_cast<size_t>(rows_) * x_floats();
    x_strips_ = h_rows_ + static_cast<size_t>(num_slots()) * h_floats();
    h_strips_ = x_strips_ + static_cast<size_t>(slots_.num_strips) * kStrip * x_floats();
    slot_rows_ = h_strips_ + static_cast<size_t>(slots_.num_strips) * kStrip * h_floats();
  }
  float* x_row(int row) const { return x_rows_ + static_cast<size_t>(row) * x_floats(); }
  float* h_row(int slot) const { return h_rows_ + static_cast<size_t>(slot) * h_floats(); }
  float* x_strip(int strip) const { return x_strips_ + static_cast<size_t>(strip) * kStrip * x_floats(); }
  float* h_strip(int strip) const { return h_strips_ + static_cast<size_t>(strip) * kStrip * h_floats(); }
  float* slot_out(int slot) const { return slot_rows_ + static_cast<size_t>(slot) * static_cast<size_t>(hidden_); }

  int begin_operand(Run& run) {
    if (!direct_) return rows_ + slots_.num_strips;
    for (int i = 0; i < rows_; ++i) make_operand(run, i);
    return 0;
  }

  void make_operand(Run& run, int tile) {
    if (tile < rows_) {
      run.kernels->gemv_prepare(x_.row(run, tile), hidden_, blob_.gate.shape.type, x_row(tile));
      return;
    }
    const int strip = tile - rows_;
    const Used& used = *std::find_if(slots_.used.rbegin(), slots_.used.rend(), [&](const Used& u) { return u.is_packed() && u.strip0 <= strip; });
    std::array<const float*, kStrip> x{};
    const int first = (strip - used.strip0) * kStrip;
    const int n = std::min(kStrip, used.count - first);
    for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = x_.row(run, slots_.row[static_cast<size_t>(used.first + first + i)]);
    run.kernels->pack(x.data(), n, hidden_, x_strip(strip));
  }

  // The units of a stage and their tiles over `rows` output rows; returns the number of tiles.
  int plan_tiles(int rows, const Matrix& shape) {
    units_.clear();
    int tiles = 0;
    const int step = gemm_tile_strips(shape);
    for (size_t u = 0; u < slots_.used.size(); ++u) {
      const Used& used = slots_.used[u];
      if (!used.is_packed()) {
        units_.push_back({static_cast<int>(u), 0, 0, tiles});
        tiles += ceil_div(rows, tile_rows_);
        continue;
      }
      const int strips = used.num_strips();
      for (int s = 0; s < strips; s += step) {
        units_.push_back({static_cast<int>(u), used.strip0 + s, std::min(step, strips - s), tiles});
        tiles += ceil_div(rows, kGemmRows);
      }
    }
    return tiles;
  }

  // Every tile reads its rows of all chosen experts, kTileBytes of weights in all.
  int direct_tile_rows(const Run& run) const {
    const int bytes = std::max(1, inter_ * static_cast<int>(slots_.used.size()));
    const int rows = std::min(kTileBytes / bytes, hidden_ / (4 * run.num_workers));
    return std::clamp(rows / 8 * 8, 8, kMaxTileRows);
  }

  void gate_up_gemv(Run& run, const Unit& unit, int block, int worker) {
    const Used& used = slots_.used[static_cast<size_t>(unit.used)];
    const int row0 = block * tile_rows_;
    const int row1 = std::min(inter_, row0 + tile_rows_);
    std::array<const float*, kMaxGemvTokens> x{};
    std::array<float*, kMaxGemvTokens> gate{};
    std::array<float*, kMaxGemvTokens> up{};
    for (int i = 0; i < used.count; ++i) {
      x[static_cast<size_t>(i)] = x_row(slots_.row[static_cast<size_t>(used.first + i)]);
      gate[static_cast<size_t>(i)] = run.scratch_of(worker) + 2 * i * kMaxTileRows - row0;
      up[static_cast<size_t>(i)] = gate[static_cast<size_t>(i)] + kMaxTileRows;
    }
    run.kernels->gemv(blob_.at(blob_.gate, used.expert), row0, row1, x.data(), used.count, gate.data());
    run.kernels->gemv(blob_.at(blob_.up, used.expert), row0, row1, x.data(), used.count, up.data());
    for (int i = 0; i < used.count; ++i) {
      float* h = gate[static_cast<size_t>(i)] + row0;
      run.kernels->silu_mul(h, up[static_cast<size_t>(i)] + row0, h, row1 - row0);
      const float weight = slots_.weight[static_cast<size_t>(used.first + i)];
      for (int r = 0; r < row1 - row0; ++r) h[r] *= weight;
      run.kernels->gemv_prepare(h, row1 - row0, blob_.down.shape.type, h_row(used.first + i) + row0);
    }
  }

  void gate_up_gemm(Run& run, const Unit& unit, int block, int worker) {
    const Used& used = slots_.used[static_cast<size_t>(unit.used)];
    const int row0 = block * kGemmRows;
    const int row1 = std::min(inter_, row0 + kGemmRows);
    float* scratch = run.scratch_of(worker);
    float* gate = scratch + run.kernels->gemm_scratch_floats();
    float* up = gate + unit.strips * kTile;
    run.kernels->gemm(blob_.at(blob_.gate, used.expert), row0, row1, x_strip(unit.strip0), unit.strips, gate, kTile, scratch);
    run.kernels->gemm(blob_.at(blob_.up, used.expert), row0, row1, x_strip(unit.strip0), unit.strips, up, kTile, scratch);
    for (int s = 0; s < unit.strips; ++s) {
      const int first = (unit.strip0 + s - used.strip0) * kStrip;
      std::array<float, kStrip> weights{};
      std::copy_n(slots_.weight.begin() + used.first + first, std::min(kStrip, used.count - first), weights.begin());
      float* h = h_strip(unit.strip0 + s) + row0 * kStrip;
      run.kernels->silu_mul(gate + s * kTile, up + s * kTile, h, (row1 - row0) * kStrip);
      for (int i = 0; i < (row1 - row0) * kStrip; ++i) h[i] *= weights[static_cast<size_t>(i % kStrip)];
      if (row1 == inter_) std::fill(h + (inter_ - row0) * kStrip, h_strip(unit.strip0 + s) + h_floats() * kStrip, 0.0F);
    }
  }

  void down_direct(Run& run, int tile, int worker) {
    const int row0 = tile * tile_rows_;
    const int n = std::min(hidden_, row0 + tile_rows_) - row0;
    for (int i = 0; i < rows_; ++i) std::fill_n(out_.row(run, i) + row0, n, 0.0F);
    for (const Used& used : slots_.used) {
      std::array<const float*, kMaxGemvTokens> h{};
      std::array<float*, kMaxGemvTokens> y{};
      for (int i = 0; i < used.count; ++i) {
        h[static_cast<size_t>(i)] = h_row(used.first + i);
        y[static_cast<size_t>(i)] = run.scratch_of(worker) + i * kMaxTileRows - row0;
      }
      run.kernels->gemv(blob_.at(blob_.down, used.expert), row0, row0 + n, h.data(), used.count, y.data());
      for (int i = 0; i < used.count; ++i) {
        float* out = out_.row(run, slots_.row[static_cast<size_t>(used.first + i)]) + row0;
        run.kernels->add(out, y[static_cast<size_t>(i)] + row0, out, n);
      }
    }
  }

  void down_gemv(Run& run, const Unit& unit, int block) {
    const Used& used = slots_.used[static_cast<size_t>(unit.used)];
    std::array<const float*, kMaxGemvTokens> h{};
    std::array<float*, kMaxGemvTokens> y{};
    for (int i = 0; i < used.count; ++i) {
      h[static_cast<size_t>(i)] = h_row(used.first + i);
      y[static_cast<size_t>(i)] = slot_out(used.first + i);
    }
    const int row0 = block * tile_rows_;
    run.kernels->gemv(blob_.at(blob_.down, used.expert), row0, std::min(hidden_, row0 + tile_rows_), h.data(), used.count, y.data());
  }

  void down_gemm(Run& run, const Unit& unit, int block, int worker) {
    const Used& used = slots_.used[static_cast<size_t>(unit.used)];
    const int row0 = block * kGemmRows;
    const int row1 = std::min(hidden_, row0 + kGemmRows);
    float* scratch = run.scratch_of(worker);
    float* c = scratch + run.kernels->gemm_scratch_floats();
    run.kernels->gemm(blob_.at(blob_.down, used.expert), row0, row1, h_strip(unit.strip0), unit.strips, c, kTile, scratch);
    for (int s = 0; s < unit.strips; ++s) {
      const int first = (unit.strip0 + s - used.strip0) * kStrip;
      std::array<float*, kStrip> y{};
      const int n = std::min(kStrip, used.count - first);
      for (int i = 0; i < n; ++i) y[static_cast<size_t>(i)] = slot_out(used.first + first + i);
      run.kernels->unpack(c + s * kTile, row1 - row0, n, y.data(), row0);
    }
  }

  void sum(Run& run, int row) {
    float* out = out_.row(run, row);
    std::fill_n(out, hidden_, 0.0F);
    for (int k = 0; k < routing_.top_k; ++k) {
      run.kernels->add(out, slot_out(slots_.of[static_cast<size_t>(row * routing_.top_k + k)]), out, hidden_);
    }
  }

  Rows x_;
  RoutingRows routing_;
  ExpertBlob blob_;
  Rows out_;
  int hidden_, inter_;

  // This run's.
  int rows_ = 0;
  bool direct_ = true;
  int tile_rows_ = 32;
  Slots slots_;
  std::vector<Unit> units_;
  float *x_rows_ = nullptr, *h_rows_ = nullptr, *x_strips_ = nullptr, *h_strips_ = nullptr, *slot_rows_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_experts(Rows x, RoutingRows routing, const ExpertBlob& blob, Rows out) {
  return std::make_unique<ExpertsOp>(x, routing, blob, out);
}

}  // namespace localmoe

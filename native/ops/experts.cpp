// The routed experts of a layer, each read in place from the one copy.
//
// Tokens are sorted by expert into slots (slots.h). The routing weight is folded into the hidden activations, so `down`
// only adds up: one row per slot, which are summed at the end. All of it is one stage: a tile waits for the experts that
// it reads, never for all of them.
//
// Of experts that come in groups, each run computes one group, [first_, end_) or those of them that have a place, from
// where its window says that it lies, and adds to what the groups before have left in the rows.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "../dependency.h"
#include "ops.h"
#include "slots.h"
#include "tickets.h"

namespace localmoe {

Matrix ExpertMatrix::at(const uint8_t* expert) const {
  Matrix matrix = shape;
  matrix.data = expert + offset;
  if (matrix.type == WeightType::fp8) matrix.scale = reinterpret_cast<const float*>(expert + scale_offset);
  return matrix;
}

Matrix ExpertPart::at(const ExpertMatrix& m, int expert) const { return m.at(data + static_cast<size_t>(expert) * stride); }

namespace {

enum Phase { kOperand, kGateUp, kDown, kSum, kNumPhases };

constexpr int kMaxTileRows = 256;  // rows of a GEMV tile: bounds the workers' scratch
constexpr int kPieceCols = 2048;   // of a token, prepared for gemv at once
constexpr ptrdiff_t kTile = kGemmRows * kStrip;

// Rows of gate and of up in a GEMM tile: few where rows are long, but not so few that the product is slow.
int pair_rows(int cols, int strips, int fewest) {
  constexpr int kMultiplyAdds = 10'000'000;  // about 250 us at 40 GMAC/s
  return std::clamp(kMultiplyAdds / (2 * kStrip * strips * std::max(1, cols)) / 6 * 6, fewest, kGemmRows / 2);
}

// Some strips of one chosen expert (none: the GEMV path) and its first tile among those of a phase and part.
struct Unit {
  int used;
  int strip0;
  int strips;
  int tile_rows;
  int first_tile;
};

Matrix whole(const std::vector<ExpertPart>& parts, ExpertMatrix ExpertPart::*matrix) {
  Matrix shape = (parts[0].*matrix).shape;
  shape.rows = 0;
  for (const ExpertPart& part : parts) shape.rows += (part.*matrix).shape.rows;
  return shape;
}

class ExpertsOp : public Op {
 public:
  ExpertsOp(Rows x, RoutingRows routing, std::vector<ExpertPart> parts, Rows out, bool in_groups)
      : x_(x),
        routing_(routing),
        parts_(std::move(parts)),
        out_(out),
        in_groups_(in_groups),
        gate_(whole(parts_, &ExpertPart::gate)),
        down_(whole(parts_, &ExpertPart::down)),
        hidden_(gate_.cols),
        inter_(gate_.rows),
        tickets_(kNumPhases, num_parts()),
        units_{std::vector<std::vector<Unit>>(parts_.size()), std::vector<std::vector<Unit>>(parts_.size())},
        packed_(num_experts()),
        gated_(num_experts()),
        done_(num_experts()) {}

  int begin(int /*stage*/, Run& run) override {
    rows_ = x_.count(run);
    find_experts(run);
    slots_.sort(run, routing_, rows_, first_, end_, places_, run.kernels->gemv_tokens(gate_.type));
    if (slots_.used.empty() && !overwrites_) return 0;
    lay_out(run);
    tickets_.clear();
    plan_operands();
    plan_gate_up(run);
    plan_down(run);
    return tickets_.total();
  }

  void run_tile(int /*stage*/, int /*tile*/, int worker, Run& run) override {
    const Tickets::Tile tile = tickets_.take(run.node_of(worker, num_parts()));
    const ExpertPart& part = parts_[static_cast<size_t>(tile.part)];
    switch (tile.phase) {
      case kOperand:
        return make_operand(run, tile.index);
      case kGateUp:
        return gate_up(run, part, unit_of(0, tile), tile.index, worker);
      case kDown:
        return down(run, part, unit_of(1, tile), tile.index, worker);
      default:
        return sum(run, sum_rows_[index(tile.index)]);
    }
  }

  size_t scratch_floats(int max_tokens, const Kernels& kernels) const override {
    const size_t rows = static_cast<size_t>(max_tokens);
    const size_t slots = rows * static_cast<size_t>(routing_.top_k);
    const size_t strips = static_cast<size_t>(Slots::max_strips(max_tokens * routing_.top_k, static_cast<int>(num_experts()), kernels.gemv_tokens(gate_.type)));
    const size_t strip = kernels.strip_floats(hidden_, gate_.type) + kernels.strip_floats(inter_, down_.type);
    return rows * x_floats() + slots * h_floats() + strips * strip + slots * static_cast<size_t>(hidden_);
  }

  size_t worker_floats(int /*max_tokens*/, const Kernels& kernels) const override {
    const size_t strips = static_cast<size_t>(std::max(gemm_tile_strips(gate_), gemm_tile_strips(down_)));
    return std::max<size_t>(kernels.gemm_scratch_floats() + strips * kTile, 2 * kMaxGemvTokens * kMaxTileRows);
  }

 private:
  int num_parts() const { return static_cast<int>(parts_.size()); }
  size_t num_experts() const { return static_cast<size_t>(parts_[0].num_experts); }
  size_t x_floats() const { return static_cast<size_t>(padded(hidden_)); }
  size_t h_floats() const { return static_cast<size_t>(padded(inter_)); }

  void find_experts(const Run& run) {
    places_ = in_groups_ && !run.window.places.empty() ? run.window.places.data() : nullptr;
    first_ = in_groups_ && places_ == nullptr ? run.window.first : 0;
    end_ = in_groups_ && places_ == nullptr ? first_ + run.window.count : static_cast<int>(num_experts());
    overwrites_ = !in_groups_ || run.window.overwrites;
    window_ = in_groups_ ? &run.window : nullptr;
  }
  Matrix matrix(const ExpertPart& part, const ExpertMatrix& m, const Used& used) const {
    if (window_ == nullptr) return part.at(m, used.expert);
    const size_t p = static_cast<size_t>(&part - parts_.data());
    const int number = places_ == nullptr ? used.expert - first_ : places_[used.expert];
    return m.at(window_->data[p * static_cast<size_t>(window_->count) + static_cast<size_t>(number)]);
  }

  void lay_out(const Run& run) {
    const size_t num_slots = slots_.row.size();
    x_rows_ = run.scratch;
    h_rows_ = x_rows_ + static_cast<size_t>(rows_) * x_floats();
    x_strips_ = h_rows_ + num_slots * h_floats();
    x_strip_floats_ = run.kernels->strip_floats(hidden_, gate_.type);
    h_strip_floats_ = run.kernels->strip_floats(inter_, down_.type);
    h_strips_ = x_strips_ + static_cast<size_t>(slots_.num_strips) * x_strip_floats_;
    slot_rows_ = h_strips_ + static_cast<size_t>(slots_.num_strips) * h_strip_floats_;
  }
  float* x_row(int row) const { return x_rows_ + static_cast<size_t>(row) * x_floats(); }
  float* h_row(int slot) const { return h_rows_ + static_cast<size_t>(slot) * h_floats(); }
  float* x_strip(int strip) const { return x_strips_ + static_cast<size_t>(strip) * x_strip_floats_; }
  float* h_strip(int strip) const { return h_strips_ + static_cast<size_t>(strip) * h_strip_floats_; }
  float* slot_out(int slot) const { return slot_rows_ + static_cast<size_t>(slot) * static_cast<size_t>(hidden_); }

  // Operands: first the tokens of the experts that take gemv, in pieces as it reads them; then the packed strips.
  void plan_operands() {
    std::vector<bool> takes(index(rows_), false);
    for (const Used& used : slots_.used) {
      for (int slot = used.first; !used.is_packed() && slot < used.first + used.count; ++slot) takes[index(slots_.row[index(slot)])] = true;
    }
    gemv_rows_.clear();
    for (int row = 0; row < rows_; ++row) {
      if (takes[index(row)]) gemv_rows_.push_back(row);
    }
    num_pieces_ = static_cast<int>(gemv_rows_.size()) * ceil_div(hidden_, kPieceCols);
    prepared_.set(num_pieces_);
    for (const Used& used : slots_.used) packed_[index(used.expert)].set(used.num_strips());
    tickets_.set(kOperand, 0, num_pieces_ + slots_.num_strips);
  }

  void plan_gate_up(const Run& run) {
    const int gemv_rows = std::min(kMaxTileRows, gemv_tile_rows(gate_, run.num_workers, kPartRows));
    plan_units(run, kGateUp, &ExpertPart::gate, gemv_rows, gated_);
  }

  void plan_down(const Run& run) {
    plan_units(run, kDown, &ExpertPart::down, gemv_tile_rows(down_, run.num_workers, 8), done_);
    sum_rows_.clear();
    for (int row = 0; row < rows_; ++row) {
      const auto choice = slots_.of.begin() + row * routing_.top_k;
      if (overwrites_ || std::any_of(choice, choice + routing_.top_k, [](int slot) { return slot >= 0; })) sum_rows_.push_back(row);
    }
    tickets_.set(kSum, 0, static_cast<int>(sum_rows_.size()));
  }

  // The units of a phase and their tiles, in each part; `left` gets each expert's number of them.
  void plan_units(const Run& run, Phase phase, ExpertMatrix ExpertPart::*matrix, int gemv_rows, std::vector<Countdown>& left) {
    std::vector<int> tiles_of(slots_.used.size(), 0);
    for (int p = 0; p < num_parts(); ++p) {
      std::vector<Unit>& units = units_[phase == kDown][index(p)];
      const int rows = (parts_[index(p)].*matrix).shape.rows;
      units.clear();
      int tiles = 0;
      for (int u = 0; u < static_cast<int>(slots_.used.size()); ++u) {
        const size_t first = units.size();
        add_units(run, units, u, phase, gemv_rows);
        const int before = tiles;
        for (size_t i = first; i < units.size(); ++i) {
          units[i].first_tile = tiles;
          tiles += ceil_div(rows, units[i].tile_rows);
        }
        tiles_of[index(u)] += tiles - before;
      }
      tickets_.set(phase, p, tiles);
    }
    for (size_t u = 0; u < tiles_of.size(); ++u) left[index(slots_.used[u].expert)].set(tiles_of[u]);
  }

  void add_units(const Run& run, std::vector<Unit>& units, int u, Phase phase, int gemv_rows) const {
    const Used& used = slots_.used[index(u)];
    if (!used.is_packed()) return units.push_back({u, -1, 0, gemv_rows, 0});
    const int strips = used.num_strips();
    const Matrix& matrix = phase == kGateUp ? gate_ : down_;
    const int most = std::min(gemm_tile_strips(matrix), run.kernels->strips_kept(matrix.cols, matrix.type));
    const int step = ceil_div(strips, ceil_div(strips, most));
    const int gemm_rows = phase == kGateUp ? pair_rows(hidden_, step, run.kernels->pair_rows(gate_.type)) : kGemmRows;
    for (int s = 0; s < strips; s += step) units.push_back({u, used.strip0 + s, std::min(step, strips - s), gemm_rows, 0});
  }

  const Unit& unit_of(int phase, const Tickets::Tile& tile) const {
    const std::vector<Unit>& units = units_[index(phase)][index(tile.part)];
    return *(std::upper_bound(units.begin(), units.end(), tile.index, [](int t, const Unit& u) { return t < u.first_tile; }) - 1);
  }

  static int tokens_of(const Used& used, const Unit& unit) {
    return std::min(unit.strips * kStrip, used.count - (unit.strip0 - used.strip0) * kStrip);
  }

  void make_operand(Run& run, int tile) {
    if (tile < num_pieces_) {
      const int pieces = ceil_div(hidden_, kPieceCols);
      const int row = gemv_rows_[index(tile / pieces)];
      const int col = tile % pieces * kPieceCols;
      run.kernels->gemv_prepare(x_.row(run, row) + col, std::min(kPieceCols, hidden_ - col), gate_.type, x_row(row) + col);
      return prepared_.arrive();
    }
    const int strip = tile - num_pieces_;
    const Used& used = *std::find_if(slots_.used.rbegin(), slots_.used.rend(), [&](const Used& u) { return u.is_packed() && u.strip0 <= strip; });
    std::array<const float*, kStrip> x{};
    const int first = (strip - used.strip0) * kStrip;
    const int n = std::min(kStrip, used.count - first);
    for (int i = 0; i < n; ++i) x[index(i)] = x_.row(run, slots_.row[index(used.first + first + i)]);
    run.kernels->pack(x.data(), n, hidden_, gate_.type, x_strip(strip));
    packed_[index(used.expert)].arrive();
  }

  void gate_up(Run& run, const ExpertPart& part, const Unit& unit, int tile, int worker) {
    const Used& used = slots_.used[index(unit.used)];
    const int row0 = (tile - unit.first_tile) * unit.tile_rows;
    const int row1 = std::min(part.gate.shape.rows, row0 + unit.tile_rows);
    const Countdown& operand = unit.strips == 0 ? prepared_ : packed_[index(used.expert)];
    if (!operand.wait(run.cancel)) return;
    if (unit.strips == 0) {
      gate_up_gemv(run, part, used, row0, row1, worker);
    } else {
      gate_up_gemm(run, part, unit, row0, row1, worker);
    }
    gated_[index(used.expert)].arrive();
  }

  void gate_up_gemv(Run& run, const ExpertPart& part, const Used& used, int row0, int row1, int worker) {
    const int n = row1 - row0;
    std::array<const float*, kMaxGemvTokens> x{};
    std::array<float*, kMaxGemvTokens> gate{};
    std::array<float*, kMaxGemvTokens> up{};
    for (int i = 0; i < used.count; ++i) {
      x[index(i)] = x_row(slots_.row[index(used.first + i)]);
      gate[index(i)] = run.scratch_of(worker) + 2 * i * kMaxTileRows - row0;
      up[index(i)] = gate[index(i)] + kMaxTileRows;
    }
    run.kernels->gemv(matrix(part, part.gate, used), row0, row1, x.data(), used.count, gate.data());
    run.kernels->gemv(matrix(part, part.up, used), row0, row1, x.data(), used.count, up.data());
    for (int i = 0; i < used.count; ++i) {
      float* h = gate[index(i)] + row0;
      run.kernels->silu_mul(h, up[index(i)] + row0, h, n);
      const float weight = slots_.weight[index(used.first + i)];
      for (int r = 0; r < n; ++r) h[r] *= weight;
      run.kernels->gemv_prepare(h, n, down_.type, h_row(used.first + i) + part.gate.first_row + row0);
    }
  }

  void gate_up_gemm(Run& run, const ExpertPart& part, const Unit& unit, int row0, int row1, int worker) {
    const Used& used = slots_.used[index(unit.used)];
    float* scratch = run.scratch_of(worker);
    float* c = scratch + run.kernels->gemm_scratch_floats();  // of each strip: rows of gate, then of up
    run.kernels->gemm_pair(matrix(part, part.gate, used), matrix(part, part.up, used), row0, row1, x_strip(unit.strip0), tokens_of(used, unit), c, kTile, scratch);
    const int first_row = part.gate.first_row + row0;
    const int n = row1 - row0;
    for (int s = 0; s < unit.strips; ++s) {
      const int first = (unit.strip0 + s - used.strip0) * kStrip;
      const int num_tokens = std::min(kStrip, used.count - first);
      std::array<float, kStrip> weights{};
      std::copy_n(slots_.weight.begin() + used.first + first, num_tokens, weights.begin());
      float* h = c + s * kTile;
      run.kernels->silu_mul(h, h + n * kStrip, h, n * kStrip);
      for (int i = 0; i < n * kStrip; ++i) h[i] *= weights[index(i % kStrip)];
      run.kernels->pack_product(h, n, first_row, num_tokens, inter_, down_.type, h_strip(unit.strip0 + s));
    }
  }

  void down(Run& run, const ExpertPart& part, const Unit& unit, int tile, int worker) {
    const Used& used = slots_.used[index(unit.used)];
    const int row0 = (tile - unit.first_tile) * unit.tile_rows;
    const int row1 = std::min(part.down.shape.rows, row0 + unit.tile_rows);
    if (!gated_[index(used.expert)].wait(run.cancel)) return;
    if (unit.strips == 0) {
      down_gemv(run, part, used, row0, row1);
    } else {
      down_gemm(run, part, unit, row0, row1, worker);
    }
    done_[index(used.expert)].arrive();
  }

  void down_gemv(Run& run, const ExpertPart& part, const Used& used, int row0, int row1) {
    std::array<const float*, kMaxGemvTokens> h{};
    std::array<float*, kMaxGemvTokens> y{};
    for (int i = 0; i < used.count; ++i) {
      h[index(i)] = h_row(used.first + i);
      y[index(i)] = slot_out(used.first + i) + part.down.first_row;
    }
    run.kernels->gemv(matrix(part, part.down, used), row0, row1, h.data(), used.count, y.data());
  }

  void down_gemm(Run& run, const ExpertPart& part, const Unit& unit, int row0, int row1, int worker) {
    const Used& used = slots_.used[index(unit.used)];
    float* scratch = run.scratch_of(worker);
    float* c = scratch + run.kernels->gemm_scratch_floats();
    run.kernels->gemm(matrix(part, part.down, used), row0, row1, h_strip(unit.strip0), tokens_of(used, unit), c, kTile, scratch);
    for (int s = 0; s < unit.strips; ++s) {
      const int first = (unit.strip0 + s - used.strip0) * kStrip;
      std::array<float*, kStrip> y{};
      const int n = std::min(kStrip, used.count - first);
      for (int i = 0; i < n; ++i) y[index(i)] = slot_out(used.first + first + i);
      run.kernels->unpack(c + s * kTile, row1 - row0, n, y.data(), part.down.first_row + row0);
    }
  }

  // In the order of the token's choices, whoever computed them first.
  void sum(Run& run, int row) {
    float* out = out_.row(run, row);
    if (overwrites_) std::fill_n(out, hidden_, 0.0F);
    for (int i = row * routing_.top_k; i < (row + 1) * routing_.top_k; ++i) {
      if (slots_.of[index(i)] < 0) continue;
      if (!done_[index(routing_.ids[i])].wait(run.cancel)) return;
      run.kernels->add(out, slot_out(slots_.of[index(i)]), out, hidden_);
    }
  }

  static size_t index(int i) { return static_cast<size_t>(i); }

  Rows x_;
  RoutingRows routing_;
  std::vector<ExpertPart> parts_;
  Rows out_;
  bool in_groups_;
  Matrix gate_, down_;  // the whole matrices' shapes
  int hidden_, inter_;

  // This run's.
  int rows_ = 0;
  int first_ = 0, end_ = 0;  // experts
  const int32_t* places_ = nullptr;  // of each expert, or null
  bool overwrites_ = true;
  const ExpertWindow* window_ = nullptr;  // of experts that come in groups
  int num_pieces_ = 0;
  std::vector<int> gemv_rows_, sum_rows_;
  Slots slots_;
  Tickets tickets_;
  std::array<std::vector<std::vector<Unit>>, 2> units_;  // gate and up, down: of each part
  Countdown prepared_;                                   // pieces of tokens
  std::vector<Countdown> packed_, gated_, done_;         // of each expert: strips, tiles of gate and up, of down
  float *x_rows_ = nullptr, *h_rows_ = nullptr, *x_strips_ = nullptr, *h_strips_ = nullptr, *slot_rows_ = nullptr;
  size_t x_strip_floats_ = 0, h_strip_floats_ = 0;
};

}  // namespace

std::unique_ptr<Op> make_experts(Rows x, RoutingRows routing, std::vector<ExpertPart> parts, Rows out) {
  return std::make_unique<ExpertsOp>(x, routing, std::move(parts), out, false);
}

std::unique_ptr<Op> make_expert_group(Rows x, RoutingRows routing, std::vector<ExpertPart> parts, Rows out) {
  return std::make_unique<ExpertsOp>(x, routing, std::move(parts), out, true);
}

}  // namespace localmoe

// The choice of experts: scores, groups, the best K, their weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops.h"

namespace localmoe {
namespace {

constexpr int kTokensPerTile = 16;
constexpr float kNone = -std::numeric_limits<float>::infinity();

class RouteOp : public Op {
 public:
  RouteOp(Rows logits, RouterShape router, RoutingRows out) : logits_(logits), router_(router), out_(out) {}

  int begin(int /*stage*/, Run& run) override {
    const int rows = logits_.count(run);
    if (rows > kTokensPerTile) return ceil_div(rows, kTokensPerTile);
    for (int i = 0; i < rows; ++i) route(run, i);
    return 0;
  }

  void run_tile(int /*stage*/, int tile, int /*worker*/, Run& run) override {
    const int end = std::min(logits_.count(run), (tile + 1) * kTokensPerTile);
    for (int i = tile * kTokensPerTile; i < end; ++i) route(run, i);
  }

 private:
  void route(Run& run, int row) const {
    std::vector<float> scores(static_cast<size_t>(router_.num_experts));
    score(logits_.row(run, row), scores);
    int32_t* ids = out_.ids + static_cast<ptrdiff_t>(row) * router_.top_k;
    if (run.forced_experts != nullptr) {
      const int token = logits_.selected ? run.selected[static_cast<size_t>(row)] : row;
      const ptrdiff_t at = (static_cast<ptrdiff_t>(out_.layer) * run.num_tokens + token) * router_.top_k;
      std::memcpy(ids, run.forced_experts + at, sizeof(int32_t) * static_cast<size_t>(router_.top_k));
    } else {
      choose(scores, ids);
    }
    weigh(scores, ids, out_.weights.row(run, row));
  }

  void score(const float* logits, std::vector<float>& scores) const {
    const size_t n = scores.size();
    if (router_.sigmoid) {
      for (size_t i = 0; i < n; ++i) scores[i] = 1.0F / (1.0F + std::exp(-logits[i]));
      return;
    }
    const float largest = *std::max_element(logits, logits + n);
    float sum = 0;
    for (size_t i = 0; i < n; ++i) sum += scores[i] = std::exp(logits[i] - largest);
    for (float& score : scores) score /= sum;
  }

  void choose(const std::vector<float>& scores, int32_t* ids) const {
    std::vector<float> ranked = scores;
    if (router_.bias != nullptr) {
      for (size_t i = 0; i < ranked.size(); ++i) ranked[i] += router_.bias[i];
    }
    if (router_.top_groups < router_.num_groups) drop_groups(ranked);
    for (int k = 0; k < router_.top_k; ++k) {
      const auto best = std::max_element(ranked.begin(), ranked.end());
      ids[k] = static_cast<int32_t>(best - ranked.begin());
      *best = kNone;
    }
  }

  // Experts outside the best groups cannot be chosen.
  void drop_groups(std::vector<float>& ranked) const {
    const size_t size = ranked.size() / static_cast<size_t>(router_.num_groups);
    std::vector<float> groups(static_cast<size_t>(router_.num_groups));
    for (size_t g = 0; g < groups.size(); ++g) groups[g] = group_score(ranked.data() + g * size, size);
    std::vector<bool> kept(groups.size(), false);
    for (int n = 0; n < router_.top_groups; ++n) {
      const size_t best = static_cast<size_t>(std::max_element(groups.begin(), groups.end()) - groups.begin());
      kept[best] = true;
      groups[best] = kNone;
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!kept[g]) std::fill_n(ranked.begin() + static_cast<ptrdiff_t>(g * size), size, kNone);
    }
  }

  float group_score(const float* scores, size_t n) const {
    float best = kNone;
    float second = kNone;
    for (size_t i = 0; i < n; ++i) {
      second = std::max(second, std::min(best, scores[i]));
      best = std::max(best, scores[i]);
    }
    return router_.group_top2 && n > 1 ? best + second : best;
  }

  void weigh(const std::vector<float>& scores, const int32_t* ids, float* weights) const {
    float sum = 1e-20F;
    for (int k = 0; k < router_.top_k; ++k) sum += weights[k] = scores[static_cast<size_t>(ids[k])];
    const float scale = router_.normalize ? router_.scale / sum : router_.scale;
    for (int k = 0; k < router_.top_k; ++k) weights[k] *= scale;
  }

  Rows logits_;
  RouterShape router_;
  RoutingRows out_;
};

}  // namespace

std::unique_ptr<Op> make_route(Rows logits, RouterShape router, RoutingRows out) {
  return std::make_unique<RouteOp>(logits, router, out);
}

}  // namespace localmoe

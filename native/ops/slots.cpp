#include "slots.h"

namespace localmoe {

// A counting sort over the routing of this run.
void Slots::sort(const Run& run, const RoutingRows& routing, int num_rows, int num_experts) {
  const size_t num_slots = static_cast<size_t>(num_rows * routing.top_k);
  std::vector<int> next(static_cast<size_t>(num_experts) + 1, 0);
  for (size_t i = 0; i < num_slots; ++i) ++next[static_cast<size_t>(routing.ids[i]) + 1];
  used.clear();
  num_strips = 0;
  for (int e = 0; e < num_experts; ++e) {
    int& first = next[static_cast<size_t>(e)];
    int& end = next[static_cast<size_t>(e) + 1];
    const int count = end;
    end += first;
    if (count == 0) continue;
    used.push_back({e, first, count, count > kMaxGemvTokens ? num_strips : -1});
    num_strips += used.back().num_strips();
  }
  row.resize(num_slots);
  weight.resize(num_slots);
  of.resize(num_slots);
  for (size_t i = 0; i < num_slots; ++i) {
    const int slot = next[static_cast<size_t>(routing.ids[i])]++;
    row[static_cast<size_t>(slot)] = static_cast<int>(i) / routing.top_k;
    weight[static_cast<size_t>(slot)] = routing.weights.row(run, row[static_cast<size_t>(slot)])[static_cast<int>(i) % routing.top_k];
    of[i] = slot;
  }
}

}  // namespace localmoe

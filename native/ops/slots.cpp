#include "slots.h"

namespace localmoe {

// A counting sort over the routing of this run.
void Slots::sort(const Run& run, const RoutingRows& routing, int num_rows, int first_expert, int end_expert, const int32_t* places, int gemv_tokens) {
  const size_t num_choices = static_cast<size_t>(num_rows * routing.top_k);
  const int num_experts = end_expert - first_expert;
  const auto place_of = [&](size_t choice) {  // of the expert within the range; num_experts outside
    const int expert = routing.ids[choice];
    const bool is_asked_for = expert >= first_expert && expert < end_expert && (places == nullptr || places[expert] >= 0);
    return static_cast<size_t>(is_asked_for ? expert - first_expert : num_experts);
  };
  std::vector<int> next(static_cast<size_t>(num_experts) + 2, 0);
  for (size_t i = 0; i < num_choices; ++i) ++next[place_of(i) + 1];
  used.clear();
  num_strips = 0;
  for (int e = 0; e < num_experts; ++e) {
    int& first = next[static_cast<size_t>(e)];
    int& end = next[static_cast<size_t>(e) + 1];
    const int count = end;
    end += first;
    if (count == 0) continue;
    used.push_back({first_expert + e, first, count, count > gemv_tokens ? num_strips : -1});
    num_strips += used.back().num_strips();
  }
  const size_t num_slots = static_cast<size_t>(next[static_cast<size_t>(num_experts)]);
  row.resize(num_slots);
  weight.resize(num_slots);
  of.resize(num_choices);
  for (size_t i = 0; i < num_choices; ++i) {
    const size_t place = place_of(i);
    of[i] = place < static_cast<size_t>(num_experts) ? next[place]++ : -1;
    if (of[i] < 0) continue;
    const size_t slot = static_cast<size_t>(of[i]);
    row[slot] = static_cast<int>(i) / routing.top_k;
    weight[slot] = routing.weights.row(run, row[slot])[static_cast<int>(i) % routing.top_k];
  }
}

}  // namespace localmoe

// The tokens of a run sorted by expert.
#pragma once

#include <vector>

#include "ops.h"

namespace localmoe {

// A chosen expert and its slots.
struct Used {
  int expert;
  int first;  // slot
  int count;
  int strip0;  // its first packed strip; -1 on the GEMV path

  bool is_packed() const { return strip0 >= 0; }
  int num_strips() const { return is_packed() ? ceil_div(count, kStrip) : 0; }
};

// One slot per (token, choice) of the experts that were asked for, ordered by expert. An expert with up to
// `gemv_tokens` takes the GEMV path, one with more takes strips of 16.
struct Slots {
  std::vector<Used> used;
  std::vector<int> row;       // of each slot: its token's row
  std::vector<float> weight;  // of each slot
  std::vector<int> of;        // of each (row, choice): its slot; -1 where another expert was chosen
  int num_strips = 0;

  // The choices of experts [first_expert, end_expert); of those that have a place, where `places` is not null.
  void sort(const Run& run, const RoutingRows& routing, int num_rows, int first_expert, int end_expert, const int32_t* places,
            int gemv_tokens);

  // Most strips that `num_slots` slots can take: the sparsest hold the fewest tokens with which an expert packs, or half of 17.
  static int max_strips(int num_slots, int num_experts, int gemv_tokens) {
    const int sparsest = gemv_tokens < kStrip / 2 ? gemv_tokens + 1 : kStrip / 2;
    return num_slots / sparsest < num_slots / kStrip + num_experts ? num_slots / sparsest : num_slots / kStrip + num_experts;
  }
};

}  // namespace localmoe

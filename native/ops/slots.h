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

// One slot per (token, choice) of the experts that were asked for, ordered by expert. An expert with up to 8 tokens takes
// the GEMV path, one with more takes strips of 16.
struct Slots {
  std::vector<Used> used;
  std::vector<int> row;       // of each slot: its token's row
  std::vector<float> weight;  // of each slot
  std::vector<int> of;        // of each (row, choice): its slot; -1 where another expert was chosen
  int num_strips = 0;

  // The choices of experts [first_expert, end_expert); of those that have a place, where `places` is not null.
  void sort(const Run& run, const RoutingRows& routing, int num_rows, int first_expert, int end_expert, const int32_t* places);

  // Most strips that `num_slots` slots can take: an expert packs from 9 tokens on, so 17 tokens in two strips is the
  // sparsest, 8.5 to a strip.
  static int max_strips(int num_slots, int num_experts) {
    return num_slots / 8 < num_slots / kStrip + num_experts ? num_slots / 8 : num_slots / kStrip + num_experts;
  }
};

}  // namespace localmoe

// Which tile of an op a worker takes: phase after phase, and in each phase its own NUMA node's tiles before others'.
//
// The pool hands out a stage's tiles by number, whoever asks; an op whose weights lie on several nodes takes that
// number for a ticket only. As many tiles as tickets: each is taken once. A tile is taken only when all of the phases
// before are, and who takes one runs it at once, so it may wait for tiles of earlier phases.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <vector>

namespace localmoe {

class Tickets {
 public:
  struct Tile {
    int phase;
    int part;
    int index;  // within the part's tiles of that phase
  };

  Tickets(int num_phases, int num_parts) : num_parts_(num_parts), counters_(static_cast<size_t>(num_phases * num_parts)) {}

  // For the job's begin(), while no tile runs.
  void clear() {
    total_ = 0;
    for (Counter& counter : counters_) counter.set(0);
  }
  void set(int phase, int part, int num_tiles) {
    counters_[static_cast<size_t>(phase * num_parts_ + part)].set(num_tiles);
    total_ += num_tiles;
  }
  int total() const { return total_; }

  Tile take(int own_part) {
    for (size_t phase = 0; phase < counters_.size(); phase += static_cast<size_t>(num_parts_)) {
      for (int n = 0; n < num_parts_; ++n) {
        const int part = (own_part + n) % num_parts_;
        const int index = counters_[phase + static_cast<size_t>(part)].take();
        if (index >= 0) return {static_cast<int>(phase) / num_parts_, part, index};
      }
    }
    assert(false);  // more tickets than tiles
    return {};
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int> next{0};
    int num_tiles = 0;

    void set(int n) {
      next.store(0, std::memory_order_relaxed);
      num_tiles = n;
    }
    int take() {
      if (next.load(std::memory_order_relaxed) >= num_tiles) return -1;
      const int index = next.fetch_add(1, std::memory_order_relaxed);
      return index < num_tiles ? index : -1;
    }
  };

  int num_parts_;
  int total_ = 0;
  std::vector<Counter> counters_;
};

}  // namespace localmoe

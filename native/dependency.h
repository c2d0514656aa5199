// What one tile waits for in others of the same stage: `down` of an expert for all of that expert's gate and up.
//
// Tiles are taken in the order of their numbers and a tile that was taken is always finished, so a tile may wait for
// lower-numbered tiles of its own stage, and for no others: then the lowest tile that still runs waits for nobody.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>

#include "pool.h"

namespace localmoe {

// Counts the tiles that are still to finish. On a cache line of its own: one worker spins on it, others count it down.
class alignas(64) Countdown {
 public:
  // For the job's begin(), while no tile runs.
  void set(int n) { left_.store(n, std::memory_order_relaxed); }

  // What the caller wrote before is seen by whoever waited.
  void arrive() { left_.fetch_sub(1, std::memory_order_acq_rel); }

  // True once all have arrived; false when `cancel` is set first, as the tiles of a cancelled job do not run. The flag
  // must stay set until Pool::run returns.
  bool wait(const Flag* cancel) const {
    int spins = 0;
    while (left_.load(std::memory_order_acquire) > 0) {
      if (cancel != nullptr && cancel->is_set()) return false;
      if (spins < kSpins) {
        ++spins;
        _mm_pause();
      } else {
        sched_yield();  // the other worker may be waiting for this CPU
      }
    }
    return true;
  }

 private:
  static constexpr int kSpins = 500;  // about 10 us

  std::atomic<int> left_{0};
};

}  // namespace localmoe

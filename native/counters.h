// What a pool counts about itself, always: relaxed atomics, no allocation.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <ctime>
#include <vector>

namespace localmoe {

inline int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// For a maximum that few writers raise, and rarely.
inline void raise(std::atomic<int64_t>& largest, int64_t value) {
  int64_t seen = largest.load(std::memory_order_relaxed);
  while (value > seen && !largest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// A distribution of times: eight buckets to each doubling, so a quantile is at most 12.5 % too large.
class Histogram {
 public:
  void record(int64_t ns) {
    counts_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
    raise(largest_, ns);
  }

  void reset() {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
    largest_.store(0, std::memory_order_relaxed);
  }

  uint64_t num() const {
    uint64_t sum = 0;
    for (const auto& count : counts_) sum += count.load(std::memory_order_relaxed);
    return sum;
  }
  int64_t largest() const { return largest_.load(std::memory_order_relaxed); }

  // A bound that the share `q` of all times stays within; 0 when there are none.
  int64_t quantile(double q) const {
    const double wanted = q * static_cast<double>(num());
    uint64_t below = 0;
    for (int i = 0; i < kBuckets; ++i) {
      below += counts_[static_cast<size_t>(i)].load(std::memory_order_relaxed);
      if (below > 0 && static_cast<double>(below) >= wanted) return std::min(end_of(i) - 1, largest());
    }
    return largest();
  }

 private:
  static constexpr int kStep = 8;       // buckets to a doubling
  static constexpr int kBuckets = 304;  // up to 2^40 ns

  // Times below 8 have a bucket each; from there on the three bits behind the leading one choose.
  static size_t bucket_of(int64_t ns) {
    const auto time = static_cast<uint64_t>(std::max<int64_t>(0, ns));
    if (time < kStep) return time;
    const int shift = std::bit_width(time) - 4;
    return static_cast<size_t>(std::min<int64_t>(kBuckets - 1, shift * kStep + static_cast<int64_t>(time >> shift)));
  }
  static int64_t end_of(int bucket) {
    if (bucket < kStep) return bucket + 1;
    const int shift = bucket / kStep - 1;
    return int64_t{bucket % kStep + kStep + 1} << shift;
  }

  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<int64_t> largest_{0};
};

// What one worker did: [urgent, bulk]. On a cache line of its own.
struct alignas(64) Tally {
  std::array<std::atomic<uint64_t>, 2> tiles{};
  std::array<std::atomic<int64_t>, 2> busy_ns{};  // in tiles, and in beginning stages
  std::array<std::atomic<int64_t>, 2> longest_tile_ns{};
  std::array<std::atomic<int64_t>, 2> longest_begin_ns{};

  void reset() {
    for (int i = 0; i < 2; ++i) {
      tiles[i].store(0, std::memory_order_relaxed);
      busy_ns[i].store(0, std::memory_order_relaxed);
      longest_tile_ns[i].store(0, std::memory_order_relaxed);
      longest_begin_ns[i].store(0, std::memory_order_relaxed);
    }
  }
};

// A pool's counters since they were reset. Pairs are [urgent, bulk].
struct PoolCounters {
  std::array<uint64_t, 2> tiles{};
  std::array<double, 2> longest_tile_us{};
  std::array<double, 2> longest_begin_us{};   // serial work between two stages, on the worker that ended the first
  std::vector<std::array<double, 2>> busy_s;  // of each worker
  // Preemption: a worker was at bulk work when urgent tiles became available, and took one of them so much later.
  uint64_t num_waits = 0;
  double wait_p50_us = 0, wait_p99_us = 0, wait_max_us = 0;
};

}  // namespace localmoe

// The worker pool: persistent pinned workers that take tiles of the most urgent job that has one.
//
// A job is a sequence of stages; a stage is a number of tiles that may run in any order on any worker. The worker
// that finishes a stage's last tile begins the next one itself, so no thread is woken between stages.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "counters.h"

namespace localmoe {

enum class Urgency : int { urgent, bulk, early };  // decode; prefill; prefill whose tiles go before other bulk ones

// How the workers' time is shared while jobs of both classes run. A job's tiles are urgent or bulk; urgent ones go first
// until their class has had its share of what both classes have had lately, then bulk ones do until urgent ones lack a turn:
// caches keep what one class reads again and again, which the other one's tiles in between would push out. What one class
// does not use the other one takes at once: no tile ever waits for a tile that is not there.
class Share {
 public:
  static constexpr int kWhole = 1024;
  // Of each worker's time. How far back the past counts: so much that one class had too much of is made up for, and no more.
  static constexpr int64_t kWindowNs = 2'500'000;
  static constexpr int64_t kTurnNs = 500'000;

  explicit Share(size_t num_workers)
      : window_(kWindowNs * kWhole * static_cast<int64_t>(num_workers)), turn_(kTurnNs * kWhole * static_cast<int64_t>(num_workers)) {}

  // Of `kWhole`; kWhole: urgent tiles always go first.
  void set(int urgent) { urgent_.store(std::clamp(urgent, 1, kWhole), std::memory_order_relaxed); }
  int get() const { return urgent_.load(std::memory_order_relaxed); }

  // Whether the urgent class has had its share, and no turn is due to it yet.
  bool is_used_up() const { return is_used_up_.load(std::memory_order_acquire); }
  // Since when it had not; looked at only while it has not.
  int64_t free_since_ns() const { return free_since_ns_.load(std::memory_order_relaxed); }

  // A worker spent `ns` until `now` on a class. Urgent work that no bulk job waits for takes nothing from anybody.
  void spend(int urgency, int64_t ns, bool has_bulk, int64_t now);

 private:
  int64_t window_;
  int64_t turn_;
  std::atomic<int> urgent_{kWhole};
  alignas(64) std::atomic<int64_t> lead_{0};  // what the urgent class had beyond its share: ns, times kWhole
  std::atomic<bool> is_used_up_{false};
  std::atomic<int64_t> free_since_ns_{0};
};

// Set from any thread; looked at before each tile. Cleared only while no job runs under it.
class Flag {
 public:
  void set() { value_.store(true, std::memory_order_relaxed); }
  void clear() { value_.store(false, std::memory_order_relaxed); }
  bool is_set() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> value_{false};
};

// Has fewer than 2^20 stages, each of fewer than 2^22 tiles.
class Job {
 public:
  virtual ~Job() = default;
  static constexpr int kEnd = -1;
  // Prepares `stage` on one worker and returns its number of tiles; 0 when there is nothing to do, kEnd past the last.
  virtual int begin(int stage) = 0;
  // Tiles of a stage are taken in the order of their numbers, and finish in any.
  virtual void run_tile(int stage, int tile, int worker) = 0;
};

class Pool {
 public:
  // One worker per entry of `cpus`, pinned to it; an entry of -1 leaves its worker free. Throws std::invalid_argument
  // when `cpus` is empty, std::system_error when a thread cannot be started.
  explicit Pool(const std::vector<int>& cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs `job` to its end and returns true, or false when `cancel` was set. Blocks; may be called from several threads.
  bool run(Job& job, Urgency urgency, const Flag* cancel);

  // Of the workers' time, for urgent tiles while there are bulk ones; from any thread, at any time.
  void set_share(double urgent) { share_.set(static_cast<int>(urgent * Share::kWhole + 0.5)); }
  double share() const { return static_cast<double>(share_.get()) / Share::kWhole; }

  int num_workers() const { return static_cast<int>(workers_.size()); }
  // Both may be called while jobs run; they then take in, or leave out, part of what is running.
  PoolCounters counters() const;
  void reset_counters();

 private:
  static constexpr int kSlots = 8;  // jobs of one class at the same time, those in front first

  // A job in flight. `users` guards it: the slot is not reused while a worker looks at it.
  struct alignas(64) Slot {
    std::atomic<bool> claimed{false};
    std::atomic<Job*> job{nullptr};
    std::atomic<uint64_t> state{0};  // stage, number of tiles, next tile
    std::atomic<int> remaining{0};   // tiles of the stage that have not finished
    std::atomic<int> users{0};
    std::atomic<uint32_t> finished{0};
    std::atomic<int64_t> published_ns{0};  // when the stage's tiles became available; urgent jobs only
    const Flag* cancel = nullptr;
    bool cancelled = false;  // written by one worker at the end, read by the caller after `finished`
  };

  // A worker, and what it remembers from one tile to the next.
  struct Worker {
    int index;
    bool is_idle = true;   // looked for a tile since the last one and found none
    int last_urgency = 0;  // of the last tile
    bool puts_bulk_first = false;  // urgent tiles have had their share
    int64_t free_since_ns = 0;  // the end of the last tile, or of sleep
  };

  void work(int index, int cpu);
  bool take_tile(Worker& worker);
  bool take_tile_of(int urgency, Worker& worker);
  bool take_tile_from(Slot& slot, int urgency, Worker& worker);
  int64_t start_tile(const Slot& slot, int urgency, const Worker& worker);
  void advance(Slot& slot, int urgency, Job& job, int stage);
  Slot& claim(bool is_bulk, bool is_early);
  void wake(int num_tiles);
  void stop();

  std::array<std::array<Slot, kSlots>, 2> slots_;  // urgent, bulk
  std::atomic<int> num_bulk_{0};  // jobs in flight
  Share share_;
  Histogram waits_;
  std::vector<Tally> tallies_;  // one per worker
  alignas(64) std::atomic<uint32_t> epoch_{0};  // changes whenever there is something new to take
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace localmoe

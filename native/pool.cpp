#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <chrono>

namespace localmoe {
namespace {

// The state word: stage (20 bits), number of tiles (22), next tile (22). One word, so that a tile is taken by one
// compare-and-swap that also proves the stage is still the same.
constexpr int kTileBits = 22;
constexpr uint64_t kTileMask = (uint64_t{1} << kTileBits) - 1;

uint64_t pack_state(int stage, int num_tiles) {
  assert(num_tiles <= static_cast<int>(kTileMask));
  return (static_cast<uint64_t>(stage) << (2 * kTileBits)) | (static_cast<uint64_t>(num_tiles) << kTileBits);
}
int stage_of(uint64_t state) { return static_cast<int>(state >> (2 * kTileBits)); }
int num_tiles_of(uint64_t state) { return static_cast<int>((state >> kTileBits) & kTileMask); }
int next_tile_of(uint64_t state) { return static_cast<int>(state & kTileMask); }

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void pin_to(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);  // refused in some containers: the worker then runs unpinned
}

// Stages follow each other within microseconds, so a worker spins this long before it sleeps.
constexpr std::chrono::microseconds kSpin{50};

}  // namespace

Pool::Pool(const std::vector<int>& cpus) {
  for (size_t i = 0; i < cpus.size(); ++i) workers_.emplace_back([this, i, cpus] { work(static_cast<int>(i), cpus[i]); });
}

Pool::~Pool() {
  stopping_.store(true);
  wake();
  for (std::thread& worker : workers_) worker.join();
}

std::array<uint64_t, 2> Pool::tiles() const { return {tiles_[0].load(), tiles_[1].load()}; }

bool Pool::run(Job& job, Urgency urgency, const Flag* cancel) {
  Slot& slot = claim(urgency);
  slot.cancel = cancel;
  slot.cancelled = false;
  slot.finished.store(0);
  slot.state.store(0);
  slot.job.store(&job);
  slot.users.fetch_add(1);
  advance(slot, job, -1);  // the caller begins the first stage
  slot.users.fetch_sub(1);
  while (slot.finished.load() == 0) futex_wait(slot.finished, 0);
  while (slot.users.load() != 0) _mm_pause();
  const bool complete = !slot.cancelled;
  slot.claimed.store(false);
  return complete;
}

Pool::Slot& Pool::claim(Urgency urgency) {
  for (;;) {
    for (Slot& slot : slots_[static_cast<int>(urgency)]) {
      if (!slot.claimed.exchange(true)) return slot;
    }
    std::this_thread::yield();
  }
}

void Pool::wake() {
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake_all(epoch_);
}

void Pool::work(int worker, int cpu) {
  pin_to(cpu);
  auto idle_since = std::chrono::steady_clock::now();
  bool was_idle = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t epoch = epoch_.load();
    if (take_tile(worker)) {
      was_idle = false;
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!was_idle) idle_since = now;
    was_idle = true;
    if (now - idle_since < kSpin) {
      for (int i = 0; i < 16; ++i) _mm_pause();
      continue;
    }
    sleepers_.fetch_add(1);
    if (!stopping_.load()) futex_wait(epoch_, epoch);
    sleepers_.fetch_sub(1);
    was_idle = false;
  }
}

bool Pool::take_tile(int worker) {
  for (int urgency = 0; urgency < 2; ++urgency) {
    for (Slot& slot : slots_[urgency]) {
      if (slot.job.load(std::memory_order_relaxed) == nullptr) continue;
      slot.users.fetch_add(1);
      const bool taken = take_tile_from(slot, worker);
      slot.users.fetch_sub(1);
      if (taken) {
        tiles_[urgency].fetch_add(1, std::memory_order_relaxed);
        return true;
      }
    }
  }
  return false;
}

bool Pool::take_tile_from(Slot& slot, int worker) {
  Job* job = slot.job.load();
  if (job == nullptr) return false;
  uint64_t state = slot.state.load();
  do {
    if (next_tile_of(state) >= num_tiles_of(state)) return false;
  } while (!slot.state.compare_exchange_weak(state, state + 1));
  // A cancelled job's tiles are still counted down, without running them.
  if (slot.cancel == nullptr || !slot.cancel->is_set()) job->run_tile(stage_of(state), next_tile_of(state), worker);
  if (slot.remaining.fetch_sub(1) == 1) advance(slot, *job, stage_of(state));
  return true;
}

void Pool::advance(Slot& slot, Job& job, int stage) {
  int num_tiles = 0;
  do {
    slot.cancelled = slot.cancel != nullptr && slot.cancel->is_set();
    num_tiles = slot.cancelled ? Job::kEnd : job.begin(++stage);
  } while (num_tiles == 0);
  if (num_tiles == Job::kEnd) {
    slot.job.store(nullptr);
    slot.finished.store(1);
    futex_wake_all(slot.finished);
    return;
  }
  slot.remaining.store(num_tiles);
  slot.state.store(pack_state(stage, num_tiles));
  wake();
}

}  // namespace localmoe

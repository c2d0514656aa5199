#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace localmoe {
namespace {

// The state word: stage (20 bits), number of tiles (22), next tile (22). One word, so that a tile is taken by one
// compare-and-swap that also proves the stage is still the same.
constexpr int kTileBits = 22;
constexpr uint64_t kTileMask = (uint64_t{1} << kTileBits) - 1;

uint64_t pack_state(int stage, int num_tiles) {
  if (num_tiles > static_cast<int>(kTileMask) || stage >= 1 << (64 - 2 * kTileBits)) {
    std::fputs("localmoe: a job has more stages or tiles than the pool can count\n", stderr);
    std::abort();
  }
  return (static_cast<uint64_t>(stage) << (2 * kTileBits)) | (static_cast<uint64_t>(num_tiles) << kTileBits);
}
int stage_of(uint64_t state) { return static_cast<int>(state >> (2 * kTileBits)); }
int num_tiles_of(uint64_t state) { return static_cast<int>((state >> kTileBits) & kTileMask); }
int next_tile_of(uint64_t state) { return static_cast<int>(state & kTileMask); }
bool has_tile(uint64_t state) { return next_tile_of(state) < num_tiles_of(state); }

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word, int num_waiters) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, num_waiters, nullptr, nullptr, 0);
}

void pin_to(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);  // refused in some containers: the worker then runs unpinned
}

// Stages follow each other within microseconds, so a worker spins this long before it sleeps.
constexpr int64_t kSpinNs = 50'000;

double load(const std::atomic<int64_t>& ns) { return static_cast<double>(ns.load(std::memory_order_relaxed)); }

}  // namespace

void Share::spend(int urgency, int64_t ns, bool has_bulk, int64_t now) {
  const int share = get();
  if (share == kWhole || (urgency == 0 && !has_bulk)) return;
  const int64_t change = urgency == 0 ? ns * (kWhole - share) : -ns * share;
  int64_t before = lead_.load(std::memory_order_relaxed);
  int64_t after = 0;
  do {
    after = std::clamp(before + change, -window_, window_);
  } while (!lead_.compare_exchange_weak(before, after, std::memory_order_relaxed));
  if (after > 0) {
    if (!is_used_up()) is_used_up_.store(true, std::memory_order_relaxed);
  } else if (after <= -turn_ && is_used_up()) {
    free_since_ns_.store(now, std::memory_order_relaxed);  // first: whoever finds the share free looks at this
    is_used_up_.store(false, std::memory_order_release);
  }
}

Pool::Pool(const std::vector<int>& cpus) : share_(cpus.size()), tallies_(cpus.size()) {
  if (cpus.empty()) throw std::invalid_argument("a pool needs at least one worker");
  try {
    for (size_t i = 0; i < cpus.size(); ++i) workers_.emplace_back([this, i, cpu = cpus[i]] { work(static_cast<int>(i), cpu); });
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_.store(true);
  wake(INT_MAX);
  for (std::thread& worker : workers_) worker.join();
}

PoolCounters Pool::counters() const {
  PoolCounters sum;
  for (const Tally& tally : tallies_) {
    sum.busy_s.push_back({1e-9 * load(tally.busy_ns[0]), 1e-9 * load(tally.busy_ns[1])});
    for (size_t i = 0; i < 2; ++i) {
      sum.tiles[i] += tally.tiles[i].load(std::memory_order_relaxed);
      sum.longest_tile_us[i] = std::max(sum.longest_tile_us[i], 1e-3 * load(tally.longest_tile_ns[i]));
      sum.longest_begin_us[i] = std::max(sum.longest_begin_us[i], 1e-3 * load(tally.longest_begin_ns[i]));
    }
  }
  sum.num_waits = waits_.num();
  sum.wait_p50_us = 1e-3 * static_cast<double>(waits_.quantile(0.5));
  sum.wait_p99_us = 1e-3 * static_cast<double>(waits_.quantile(0.99));
  sum.wait_max_us = 1e-3 * static_cast<double>(waits_.largest());
  return sum;
}

void Pool::reset_counters() {
  for (Tally& tally : tallies_) tally.reset();
  waits_.reset();
}

bool Pool::run(Job& job, Urgency urgency, const Flag* cancel) {
  const bool is_bulk = urgency != Urgency::urgent;
  Slot& slot = claim(is_bulk, urgency == Urgency::early);
  num_bulk_.fetch_add(is_bulk, std::memory_order_relaxed);
  slot.cancel = cancel;
  slot.cancelled = false;
  slot.finished.store(0);
  slot.state.store(0);
  slot.job.store(&job);
  advance(slot, is_bulk ? 1 : 0, job, -1);  // the caller begins the first stage
  while (slot.finished.load() == 0) futex_wait(slot.finished, 0);
  while (slot.users.load() != 0) std::this_thread::yield();  // a worker may look at the job until it has let go
  num_bulk_.fetch_sub(is_bulk, std::memory_order_relaxed);
  const bool complete = !slot.cancelled;
  slot.claimed.store(false);
  return complete;
}

// Workers look at slots from the front: there are the early ones, and the other bulk ones behind.
Pool::Slot& Pool::claim(bool is_bulk, bool is_early) {
  std::array<Slot, kSlots>& slots = slots_[is_bulk ? 1 : 0];
  const size_t first = is_bulk && !is_early ? kSlots / 2 : 0;
  for (;;) {
    for (size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots[(first + i) % kSlots];
      if (!slot.claimed.exchange(true)) return slot;
    }
    std::this_thread::yield();
  }
}

// Each tile needs one worker at most; those that are awake look for tiles by themselves.
void Pool::wake(int num_tiles) {
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake(epoch_, num_tiles);
}

void Pool::work(int index, int cpu) {
  pin_to(cpu);
  Worker self{index};
  self.free_since_ns = now_ns();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t epoch = epoch_.load();  // before looking: what comes later changes it
    if (take_tile(self)) continue;
    self.is_idle = true;
    if (now_ns() - self.free_since_ns < kSpinNs) {
      for (int i = 0; i < 16; ++i) _mm_pause();
      continue;
    }
    sleepers_.fetch_add(1);
    if (!stopping_.load()) futex_wait(epoch_, epoch);
    sleepers_.fetch_sub(1);
    self.free_since_ns = now_ns();
  }
}

bool Pool::take_tile(Worker& worker) {
  worker.puts_bulk_first = share_.get() < Share::kWhole && share_.is_used_up();
  const int first = worker.puts_bulk_first ? 1 : 0;
  return take_tile_of(first, worker) || take_tile_of(1 - first, worker);
}

bool Pool::take_tile_of(int urgency, Worker& worker) {
  for (Slot& slot : slots_[static_cast<size_t>(urgency)]) {
    // Without this look every idle worker would keep writing to the line that the busy ones take tiles from.
    if (!has_tile(slot.state.load(std::memory_order_relaxed))) continue;
    slot.users.fetch_add(1);
    const bool taken = take_tile_from(slot, urgency, worker);
    slot.users.fetch_sub(1);
    if (taken) return true;
  }
  return false;
}

bool Pool::take_tile_from(Slot& slot, int urgency, Worker& worker) {
  Job* job = slot.job.load();
  if (job == nullptr) return false;
  uint64_t state = slot.state.load();
  do {
    if (!has_tile(state)) return false;
  } while (!slot.state.compare_exchange_weak(state, state + 1));
  const int64_t start = start_tile(slot, urgency, worker);
  // A cancelled job's tiles are still counted down, without running them.
  if (slot.cancel == nullptr || !slot.cancel->is_set()) job->run_tile(stage_of(state), next_tile_of(state), worker.index);
  int64_t end = now_ns();
  Tally& tally = tallies_[static_cast<size_t>(worker.index)];
  raise(tally.longest_tile_ns[urgency], end - start);
  if (slot.remaining.fetch_sub(1) == 1) {
    advance(slot, urgency, *job, stage_of(state));
    const int64_t begun = now_ns();
    raise(tally.longest_begin_ns[urgency], begun - end);
    end = begun;
  }
  tally.tiles[urgency].fetch_add(1, std::memory_order_relaxed);
  tally.busy_ns[urgency].fetch_add(end - start, std::memory_order_relaxed);
  share_.spend(urgency, end - start, num_bulk_.load(std::memory_order_relaxed) > 0, end);
  worker.is_idle = false;
  worker.last_urgency = urgency;
  worker.free_since_ns = end;
  return true;
}

// When a tile that was just taken starts: in a row of tiles of one class where the one before ended, which saves a look
// at the clock. Records the wait of an urgent tile for the worker's bulk work, from when its class had share left.
int64_t Pool::start_tile(const Slot& slot, int urgency, const Worker& worker) {
  if (!worker.is_idle && worker.last_urgency == urgency) return worker.free_since_ns;
  const int64_t now = now_ns();
  const int64_t published = std::max(slot.published_ns.load(std::memory_order_relaxed), share_.free_since_ns());
  const bool may_wait = urgency == 0 && !worker.is_idle && !worker.puts_bulk_first;
  if (may_wait && published < worker.free_since_ns) waits_.record(now - published);
  return now;
}

void Pool::advance(Slot& slot, int urgency, Job& job, int stage) {
  int num_tiles = 0;
  do {
    slot.cancelled = slot.cancel != nullptr && slot.cancel->is_set();
    num_tiles = slot.cancelled ? Job::kEnd : job.begin(++stage);
  } while (num_tiles == 0);
  if (num_tiles == Job::kEnd) {
    slot.job.store(nullptr);
    slot.finished.store(1);
    futex_wake(slot.finished, 1);
    return;
  }
  if (urgency == 0) slot.published_ns.store(now_ns(), std::memory_order_relaxed);
  slot.remaining.store(num_tiles);
  slot.state.store(pack_state(stage, num_tiles));
  wake(num_tiles);
}

}  // namespace localmoe

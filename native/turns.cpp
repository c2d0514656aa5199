#include "turns.h"

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <limits>

namespace localmoe {

namespace {

constexpr int kSpins = 500;               // about 10 us
constexpr int64_t kAwakeNs = 2'000'000;  // a device's part of a layer takes less: a nap would come on top of it
constexpr timespec kNap = {0, 50'000};

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

bool wait_word(const int32_t* word, int32_t value, const Flag* cancel, int64_t deadline_ns, int64_t awake_ns) {
  std::atomic_ref<int32_t> shared(*const_cast<int32_t*>(word));  // only read; atomic_ref of const is C++26
  const int64_t begin = now_ns();
  for (int spins = 0; shared.load(std::memory_order_acquire) < value; ++spins) {
    if (cancel != nullptr && cancel->is_set()) return false;
    if (spins < kSpins) {
      _mm_pause();
      continue;
    }
    const int64_t now = now_ns();
    if (now >= deadline_ns) return false;
    if (now - begin < awake_ns) {
      sched_yield();
    } else {
      nanosleep(&kNap, nullptr);
    }
  }
  return true;
}

bool take_turns(Program& program, Pool& pool, bool is_urgent, const Flag* cancel, const Run& run, const std::vector<Turn>& turns,
                int32_t base, double* times) {
  for (const Turn& turn : turns) {
    const bool waits = turn.wait_for != nullptr;
    if (waits && !wait_word(turn.wait_for, base + turn.wait_value, cancel, std::numeric_limits<int64_t>::max(), kAwakeNs)) return false;
    *times++ = seconds(now_ns());
    Run part = run;
    part.first_op = turn.first_op;
    part.end_op = turn.end_op;
    part.window = turn.window;
    if (!program.forward(pool, is_urgent, cancel, std::move(part))) return false;
    *times++ = seconds(now_ns());
    if (turn.tell != nullptr) std::atomic_ref<int32_t>(*turn.tell).store(base + turn.tell_value, std::memory_order_release);
  }
  return true;
}

}  // namespace localmoe

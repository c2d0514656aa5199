// The pool under load: `stress SEED SECONDS`. Jobs of both classes from many threads, cancelled at any moment, on pools
// that come and go. Tiles write plain memory that later stages read, so that ThreadSanitizer sees a missing order.
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "dependency.h"
#include "pool.h"

using namespace localmoe;

namespace {

using Random = std::minstd_rand;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "stress: %s\n", what);
  std::abort();
}

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

void spin(int n) {
  for (int i = 0; i < n; ++i) _mm_pause();
}

std::vector<int> unpinned(int num_workers) { return std::vector<int>(static_cast<size_t>(num_workers), -1); }

// Stages of 0 to 40 tiles; in every third, the second half of the tiles waits for the first.
class Checked : public Job {
 public:
  Checked(unsigned seed, Flag* cancel) : random_(seed), cancel_(cancel), num_stages_(below(random_, 30)) {
    // One job in three is cancelled by a tile of its own, wherever that comes to be.
    if (below(random_, 3) == 0) cancel_at_ = below(random_, num_stages_ + 1);
  }

  int begin(int stage) override {
    check(stage == next_stage_++, "stages are begun out of order");
    if (stage > 0 && !cancel_->is_set()) check_stage();
    if (stage == num_stages_) return kEnd;
    runs_.assign(static_cast<size_t>(below(random_, 4) == 0 ? 0 : below(random_, 41)), 0);
    waits_ = stage % 3 == 0;
    first_half_.set(static_cast<int>(half()));
    length_ = below(random_, 200);
    stage_ = stage;
    return static_cast<int>(runs_.size());
  }

  void run_tile(int stage, int tile, int /*worker*/) override {
    check(stage == stage_, "a tile of another stage");
    if (stage == cancel_at_ && tile == 0) cancel_->set();
    const auto index = static_cast<size_t>(tile);
    spin(length_);
    if (waits_ && index >= half()) {
      if (!first_half_.wait(cancel_)) return;
      for (size_t i = 0; i < half(); ++i) check(runs_[i] == 1, "a tile did not wait for what it needs");
    }
    ++runs_[index];
    if (index < half()) first_half_.arrive();
  }

  bool is_whole() const { return next_stage_ == num_stages_ + 1; }

 private:
  size_t half() const { return runs_.size() / 2; }
  void check_stage() const {
    for (const int runs : runs_) check(runs == 1, "a tile ran not once");
  }

  Random random_;
  Flag* cancel_;
  int num_stages_;
  int cancel_at_ = -1;
  int next_stage_ = 0;
  int stage_ = -1;
  int length_ = 0;
  bool waits_ = false;
  Countdown first_half_;
  std::vector<int> runs_;  // of each tile of the stage
};

void call(Pool& pool, unsigned seed, int num_jobs) {
  Random random(seed);
  for (int n = 0; n < num_jobs; ++n) {
    Flag cancel;
    Checked job(static_cast<unsigned>(random()), &cancel);
    std::thread canceller;
    if (below(random, 4) == 0) canceller = std::thread([&cancel, us = below(random, 300)] { usleep(static_cast<useconds_t>(us)); cancel.set(); });
    const bool complete = pool.run(job, static_cast<Urgency>(below(random, 3)), &cancel);
    check(complete ? job.is_whole() : cancel.is_set(), "a job ended early");
    if (canceller.joinable()) canceller.join();
    if (below(random, 4) == 0) usleep(static_cast<useconds_t>(below(random, 200)));  // workers spin 50 us, then sleep
  }
}

// More callers than the pool has slots, and one that looks at the counters.
void stress_jobs(Random& random) {
  Pool pool(unpinned(1 + below(random, 5)));
  std::vector<std::thread> callers;
  const int num_jobs = below(random, 12);
  for (int n = 1 + below(random, 20); n > 0; --n) callers.emplace_back(call, std::ref(pool), static_cast<unsigned>(random()), num_jobs);
  for (int n = 0; n < 20; ++n) {
    if (n % 3 == 0) pool.set_share(0.1 * (1 + below(random, 10)));
    const PoolCounters counters = pool.counters();
    check(counters.busy_s.size() == static_cast<size_t>(pool.num_workers()), "a worker is not counted");
    if (n % 5 == 0) pool.reset_counters();
    usleep(50);
  }
  for (std::thread& caller : callers) caller.join();
}

void stress_lifetimes(Random& random) {
  for (int n = 0; n < 10; ++n) {
    Pool pool(unpinned(1 + below(random, 4)));
    if (below(random, 2) == 0) usleep(static_cast<useconds_t>(below(random, 150)));
    call(pool, static_cast<unsigned>(random()), below(random, 2));
  }
}

// Says which stage has started, and how many of its tiles were not yet seen to start.
class Urgent : public Job {
 public:
  static constexpr int kTiles = 64;

  int begin(int stage) override {
    left_.store(stage * 1000 + kTiles);
    return stage == 40 ? kEnd : kTiles;
  }
  void run_tile(int stage, int /*tile*/, int /*worker*/) override {
    left_.fetch_sub(1);
    started_.store(stage);
    spin(20);
  }
  // The stage that certainly has tiles to take, as no other worker can have taken more than one without starting it;
  // -1 when there may be none.
  int waiting_stage(int num_workers) const {
    const int stage = started_.load();
    const int left = left_.load();
    return left / 1000 == stage && left % 1000 >= num_workers ? stage : -1;
  }

 private:
  std::atomic<int> left_{0};
  std::atomic<int> started_{-1};
};

class Bulk : public Job {
 public:
  Bulk(const Urgent& urgent, int num_workers) : urgent_(urgent), num_workers_(num_workers), last_(static_cast<size_t>(num_workers), -1) {}

  int begin(int /*stage*/) override { return 100; }
  void run_tile(int /*stage*/, int /*tile*/, int worker) override {
    const int waiting = urgent_.waiting_stage(num_workers_);
    int& last = last_[static_cast<size_t>(worker)];
    check(waiting < 0 || waiting != last, "a worker took a second bulk tile while urgent tiles waited");
    last = waiting < 0 ? last : waiting;
    spin(300);
  }

 private:
  const Urgent& urgent_;
  int num_workers_;
  std::vector<int> last_;  // of each worker: the waiting stage that it took a bulk tile beside
};

void stress_preemption(Random& random) {
  const int num_workers = 2 + below(random, 3);
  Pool pool(unpinned(num_workers));
  Urgent urgent;
  Bulk bulk(urgent, num_workers);
  Flag cancel;
  std::thread reader([&] { check(!pool.run(bulk, Urgency::bulk, &cancel), "an endless job ended"); });
  usleep(200);
  check(pool.run(urgent, Urgency::urgent, nullptr), "nobody cancelled this");
  cancel.set();
  reader.join();
}

// The rule by itself, on a clock of its own: whatever tiles take, each class gets its share, in turns.
void check_share(Random& random) {
  const int num_workers = 1 + below(random, 8);
  Share share(static_cast<size_t>(num_workers));
  const int part = 1 + below(random, Share::kWhole - 1);
  share.set(part);
  int64_t now = 0, spent[2] = {0, 0};
  const auto take = [&](int urgency) {
    const int64_t ns = 20'000 + below(random, 200'000);
    now += ns;
    spent[urgency] += ns;
    share.spend(urgency, ns, true, now);
  };
  for (int n = 0; n < 1000; ++n) take(below(random, 10) == 0 ? 0 : 1);  // some past
  spent[0] = spent[1] = 0;
  int num_turns = 0;
  for (int n = 0; n < 20'000; ++n) {
    const bool was_used_up = share.is_used_up();
    take(was_used_up ? 1 : 0);
    num_turns += was_used_up && !share.is_used_up();
  }
  const double wanted = static_cast<double>(part) / Share::kWhole, all = static_cast<double>(spent[0] + spent[1]);
  check(std::abs(static_cast<double>(spent[0]) - wanted * all) < 0.01 * all, "a class did not get its share");
  check(num_turns <= 1 + spent[1] / (Share::kTurnNs * num_workers), "a class had less than a turn");
  check(share.free_since_ns() <= now, "the share is free since a time to come");
}

}  // namespace

int main(int argc, char** argv) {
  check(argc == 3, "usage: stress SEED SECONDS");
  Random random(static_cast<unsigned>(std::atoi(argv[1])) + 1);
  const int64_t end = now_ns() + std::atoi(argv[2]) * int64_t{1'000'000'000};
  int rounds = 0;
  do {
    stress_jobs(random);
    stress_lifetimes(random);
    stress_preemption(random);
    check_share(random);
    ++rounds;
  } while (now_ns() < end);
  std::printf("%d rounds\n", rounds);
}

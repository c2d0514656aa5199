// What this machine's cores can do at best, measured by the worker pool that runs the kernels.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "isa.h"
#include "measure.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace localmoe {
namespace {

constexpr size_t kTileBytes = size_t{256} << 10;

class ReadJob : public Job {
 public:
  ReadJob(const Measures& measures, int variant, const uint8_t* data, size_t bytes)
      : measures_(measures), variant_(variant), data_(data), bytes_(bytes / 4096 * 4096) {}
  int begin(int stage) override { return stage > 0 ? kEnd : static_cast<int>((bytes_ + kTileBytes - 1) / kTileBytes); }
  void run_tile(int /*stage*/, int tile, int /*worker*/) override {
    const size_t first = static_cast<size_t>(tile) * kTileBytes;
    digest_ += measures_.read(variant_, data_ + first, std::min(kTileBytes, bytes_ - first));
  }

 private:
  const Measures& measures_;
  int variant_;
  const uint8_t* data_;
  size_t bytes_;
  std::atomic<uint64_t> digest_{0};
};

// Every worker takes tiles of about 50 us until the time is over.
class FmaJob : public Job {
 public:
  FmaJob(const Measures& measures, int num_tiles) : measures_(measures), num_tiles_(num_tiles) {}
  int begin(int stage) override { return stage > 0 ? kEnd : num_tiles_; }
  void run_tile(int /*stage*/, int /*tile*/, int /*worker*/) override {
    float sink = 0;
    const double flops = measures_.fma(10000, &sink);
    flops_ += static_cast<uint64_t>(flops) + (sink == 12345.0F ? 1 : 0);
  }
  double flops() const { return static_cast<double>(flops_.load()); }

 private:
  const Measures& measures_;
  int num_tiles_;
  std::atomic<uint64_t> flops_{0};
};

double seconds_of(Pool& pool, Job& job) {
  const auto start = std::chrono::steady_clock::now();
  pool.run(job, Urgency::urgent, nullptr);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::string> reader_names(const std::string& target) {
  std::vector<std::string> names;
  for (const char* const* name = select_measures(target).reader_names; *name != nullptr; ++name) names.emplace_back(*name);
  return names;
}

}  // namespace

void bind_measure(nb::module_& m) {
  m.def("reader_names", &reader_names, "target"_a, "The target's streaming-read variants.");
  m.def(
      "read_seconds",
      [](Pool& pool, nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> data, int variant, const std::string& target) {
        nb::gil_scoped_release release;
        ReadJob job(select_measures(target), variant, data.data(), data.shape(0));
        return seconds_of(pool, job);
      },
      "pool"_a, "data"_a, "variant"_a, "target"_a, "Seconds in which the pool reads `data` once.");
  m.def(
      "fma_flops",
      [](Pool& pool, const std::string& target, int num_tiles) {
        nb::gil_scoped_release release;
        FmaJob job(select_measures(target), num_tiles);
        const double seconds = seconds_of(pool, job);
        return job.flops() / seconds;
      },
      "pool"_a, "target"_a, "num_tiles"_a = 2000, "FLOP/s that the pool reaches on FMA chains in registers.");
}

}  // namespace localmoe

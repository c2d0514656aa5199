// What this machine's cores can do at best, measured by the worker pool that runs the kernels.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "isa.h"
#include "measure.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace localmoe {
namespace {

constexpr size_t kTileBytes = size_t{256} << 10;

// Some rows of a table, one after the other, each from its first byte on.
class ReadJob : public Job {
 public:
  ReadJob(const Measures& measures, int variant, const uint8_t* data, size_t row_bytes, std::vector<int> rows)
      : measures_(measures), variant_(variant), data_(data), stride_(row_bytes), bytes_(row_bytes / 4096 * 4096), rows_(std::move(rows)) {}
  int begin(int stage) override { return stage > 0 ? kEnd : tiles_of_row() * static_cast<int>(rows_.size()); }
  void run_tile(int /*stage*/, int tile, int /*worker*/) override {
    const size_t row = static_cast<size_t>(rows_[static_cast<size_t>(tile / tiles_of_row())]);
    const size_t first = static_cast<size_t>(tile % tiles_of_row()) * kTileBytes;
    digest_ += measures_.read(variant_, data_ + row * stride_ + first, std::min(kTileBytes, bytes_ - first));
  }

 private:
  int tiles_of_row() const { return static_cast<int>((bytes_ + kTileBytes - 1) / kTileBytes); }

  const Measures& measures_;
  int variant_;
  const uint8_t* data_;
  size_t stride_, bytes_;
  std::vector<int> rows_;
  std::atomic<uint64_t> digest_{0};
};

// Tiles of about 50 us.
class FmaJob : public Job {
 public:
  FmaJob(const Measures& measures, int variant, int num_tiles) : measures_(measures), variant_(variant), num_tiles_(num_tiles) {}
  int begin(int stage) override { return stage > 0 ? kEnd : num_tiles_; }
  void run_tile(int /*stage*/, int /*tile*/, int /*worker*/) override {
    float sink = 0;
    const double flops = measures_.fma(variant_, 20000, &sink);
    flops_ += static_cast<uint64_t>(flops) + (sink == 12345.0F ? 1 : 0);
  }
  double flops() const { return static_cast<double>(flops_.load()); }

 private:
  const Measures& measures_;
  int variant_;
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

using Table = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

double read_seconds(Pool& pool, const Table& data, const std::vector<int>& rows, int variant, const std::string& target) {
  const int count = static_cast<int>(data.shape(0));
  if (std::any_of(rows.begin(), rows.end(), [&](int row) { return row < 0 || row >= count; })) throw std::invalid_argument("no such row");
  nb::gil_scoped_release release;
  ReadJob job(select_measures(target), variant, data.data(), data.shape(1), rows);
  return seconds_of(pool, job);
}

// The best of all variants: none of them knows how many chains this CPU wants.
double fma_flops(Pool& pool, const std::string& target, int tiles_per_worker) {
  nb::gil_scoped_release release;
  const Measures& measures = select_measures(target);
  double best = 0;
  for (int variant = 0; variant < measures.num_fmas; ++variant) {
    FmaJob job(measures, variant, tiles_per_worker * pool.num_workers());
    const double seconds = seconds_of(pool, job);
    best = std::max(best, job.flops() / seconds);
  }
  return best;
}

}  // namespace

void bind_measure(nb::module_& m) {
  m.def("reader_names", &reader_names, "target"_a, "The target's streaming-read variants.");
  m.def("read_seconds", &read_seconds, "pool"_a, "data"_a, "rows"_a, "variant"_a, "target"_a,
        "Seconds in which the pool reads these rows of `data` once, whole pages of them.");
  m.def("fma_flops", &fma_flops, "pool"_a, "target"_a, "tiles_per_worker"_a = 400,
        "FLOP/s that the pool reaches on chains of FMAs in registers, the better number of chains.");
}

}  // namespace localmoe

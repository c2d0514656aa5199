#include "bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "copy_values.h"
#include "isa.h"
#include "pool.h"
#include "read_values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace localmoe {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Place = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The kind named `name`, of which there are whole values in `bytes`.
ValueKind kind_of(const std::string& name, size_t bytes) {
  constexpr const char* kKinds[] = {"fp8", "bf16", "f32", "scale"};
  const auto* found = std::find(std::begin(kKinds), std::end(kKinds), name);
  const size_t size = found - std::begin(kKinds) < 2 ? found - std::begin(kKinds) + 1 : 4;
  if (found == std::end(kKinds)) throw std::invalid_argument("no kind of value is named " + name);
  if (bytes % size != 0) throw std::invalid_argument("lengths do not fit");
  return static_cast<ValueKind>(found - std::begin(kKinds));
}

ptrdiff_t copy(const Bytes& source, const Place& target, const std::string& name) {
  const ValueKind kind = kind_of(name, source.shape(0));
  if (source.shape(0) != target.shape(0)) throw std::invalid_argument("lengths do not fit");
  nb::gil_scoped_release release;
  return copy_values(source.data(), target.data(), source.shape(0), kind);
}

ptrdiff_t find_bad(const Bytes& values, const std::string& name) {
  const ValueKind kind = kind_of(name, values.shape(0));
  nb::gil_scoped_release release;
  return find_bad_value(values.data(), values.shape(0), kind);
}

using Numbers = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool read_parts(int fd, int64_t start, int64_t stop, const Numbers& parts, const Place& room, const Place& buffer, Gate& gate) {
  std::vector<ValuePart> taken;
  const int64_t size = static_cast<int64_t>(room.shape(0));
  int64_t before = start;
  for (size_t n = 0; n < parts.shape(0); ++n) {
    const int64_t* part = parts.data() + n * parts.shape(1);
    const int64_t first = part[0], end = part[1], offset = part[2], kind = part[3];
    const bool fits = before <= first && first <= end && end <= stop && 0 <= offset && offset <= size - (end - first);
    if (!fits || kind < 0 || kind > static_cast<int64_t>(ValueKind::scale)) throw std::invalid_argument("parts do not fit");
    taken.push_back({first, end, room.data() + offset, static_cast<ValueKind>(kind)});
    before = end;
  }
  nb::gil_scoped_release release;
  return read_values(fd, start, stop, taken, buffer.data(), static_cast<int64_t>(buffer.shape(0)), gate);
}

}  // namespace
}  // namespace localmoe

NB_MODULE(_native, m) {
  using namespace localmoe;
  m.doc() = "The native core: instruction-set targets, worker pool and step programs.";
  m.def("supported_targets", &supported_targets, "Targets that this machine can run, the best one last.");
  m.def("check_target", [](const std::string& name) { return std::string(select_kernels(name).name); }, "name"_a,
        "The target that `name` selects (empty: the best). Raises ValueError when this machine cannot run it.");
  nb::class_<Flag>(m, "Flag", "A flag that native code looks at between tiles.")
      .def(nb::init<>())
      .def("set", &Flag::set)
      .def("is_set", &Flag::is_set)
      .def("clear", &Flag::clear);
  nb::class_<PoolCounters>(m, "PoolCounters", "A pool's counters at one moment. Pairs are [urgent, bulk].")
      .def_ro("tiles", &PoolCounters::tiles)
      .def_ro("longest_tile_us", &PoolCounters::longest_tile_us)
      .def_ro("longest_begin_us", &PoolCounters::longest_begin_us, "Serial work between two stages.")
      .def_ro("busy_s", &PoolCounters::busy_s, "Of each worker: in tiles, and in beginning stages.")
      .def_ro("num_waits", &PoolCounters::num_waits,
              "How often an urgent tile waited for the bulk work of the worker that then took it.")
      .def_ro("wait_p50_us", &PoolCounters::wait_p50_us, "Of these waits, at most 12.5 % too large; so is p99.")
      .def_ro("wait_p99_us", &PoolCounters::wait_p99_us)
      .def_ro("wait_max_us", &PoolCounters::wait_max_us);
  nb::class_<Pool>(m, "Pool", "Persistent workers, one per entry of `cpus`, pinned to it (-1: not pinned).")
      .def(nb::init<const std::vector<int>&>(), "cpus"_a)
      .def_prop_ro("num_workers", &Pool::num_workers)
      .def_prop_rw("share", &Pool::share, [](Pool& pool, double share) {
        if (!(share > 0 && share <= 1)) throw std::invalid_argument("a share is above 0 and at most 1");
        pool.set_share(share);
      }, "Of the workers' time, for urgent tiles while there are bulk ones. 1: urgent tiles always go first.")
      .def("counters", &Pool::counters, "What the workers did since the counters were reset, from any thread.")
      .def("reset_counters", &Pool::reset_counters);
  m.def("copy_values", &copy, "source"_a, "target"_a, "kind"_a,
        "Copies weights, [bytes] to [bytes], until a bad value is met: the place of its first byte, or -1. `kind` is fp8, "
        "bf16, f32 or scale. Raises ValueError for another kind, or lengths that do not fit.");
  nb::class_<Gate>(m, "Gate", "What `shut` has closed keeps readers from the memory that they fill.")
      .def(nb::init<>())
      .def("enter", &Gate::enter, "False once it is shut.")
      .def("leave", &Gate::leave)
      .def("shut", &Gate::shut, "Returns when nobody is inside.", nb::call_guard<nb::gil_scoped_release>());
  m.def("read_values", &read_parts, "fd"_a, "start"_a, "stop"_a, "parts"_a, "room"_a, "buffer"_a, "gate"_a,
        "Puts parts of [start, stop) of a file into place, in its order: rows of `parts` [n, 4] are first and last byte in "
        "the file, place in `room`, and kind (fp8 0, bf16 1, f32 2, scale 3). False where anything was not as it should "
        "be; ValueError where parts do not fit.");
  m.def("find_bad_value", &find_bad, "values"_a, "kind"_a, "As copy_values, but only looks.");
  bind_program(m);
  bind_measure(m);
}

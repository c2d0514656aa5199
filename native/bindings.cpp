#include "bindings.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

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
      .def("counters", &Pool::counters, "What the workers did since the counters were reset, from any thread.")
      .def("reset_counters", &Pool::reset_counters);
  bind_program(m);
  bind_measure(m);
}

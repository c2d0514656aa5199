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
  nb::class_<Pool>(m, "Pool", "Persistent workers, one per entry of `cpus`, pinned to it (-1: not pinned).")
      .def(nb::init<const std::vector<int>&>(), "cpus"_a)
      .def_prop_ro("num_workers", &Pool::num_workers)
      .def_prop_ro("tiles", &Pool::tiles, "Tiles run so far: [urgent, bulk].");
  bind_program(m);
  bind_measure(m);
}

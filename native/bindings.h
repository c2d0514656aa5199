// Python's view of the native core, split over the bind_*.cpp files.
#pragma once

#include <nanobind/nanobind.h>

namespace localmoe {

void bind_program(nanobind::module_& m);
void bind_measure(nanobind::module_& m);

}  // namespace localmoe

// Which instruction-set targets this machine can run, by cpuid and operating-system state.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"
#include "measure.h"

namespace localmoe {

// Names of the targets compiled in that this machine can run, the best one last.
std::vector<std::string> supported_targets();

// The kernels of `name`, or of the best supported target when it is empty.
// Throws std::invalid_argument for a name that is unknown or not supported here.
const Kernels& select_kernels(const std::string& name);
// The same target's measures.
const Measures& select_measures(const std::string& name);

}  // namespace localmoe

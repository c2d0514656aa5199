#include "isa.h"

#include <stdexcept>

namespace localmoe {
namespace {

struct Target {
  const Kernels* kernels;
  bool supported;
};

std::vector<Target> targets() {
  __builtin_cpu_init();  // the builtins test XCR0 too, so a kernel that does not save wide registers counts as "no"
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return {{&kScalarKernels, true}, {&kAvx2Kernels, avx2}};
}

}  // namespace

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.supported) names.emplace_back(target.kernels->name);
  }
  return names;
}

const Kernels& select_kernels(const std::string& name) {
  const Kernels* best = nullptr;
  for (const Target& target : targets()) {
    if (target.supported && (name.empty() || name == target.kernels->name)) best = target.kernels;
  }
  if (best == nullptr) throw std::invalid_argument("no target '" + name + "' for this machine");
  return *best;
}

}  // namespace localmoe

#include "isa.h"

#include <stdexcept>

namespace localmoe {
namespace {

struct Target {
  const Kernels* kernels;
  const Measures* measures;
  bool supported;
};

std::vector<Target> targets() {
  __builtin_cpu_init();  // the builtins test XCR0 too, so a kernel that does not save wide registers counts as "no"
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
  const Target f16c{&kAvx2Kernels, &kAvx2Measures, avx2};
  const Target shift{&kAvx2ZenKernels, &kAvx2ZenMeasures, avx2};
  // Where FP32 denormals cost nothing, and a VDPBF16PS no more than an FMA (3 cycles on Intel's).
  const bool zen = __builtin_cpu_is("amd") != 0;
  const Target f32{&kAvx512Kernels, &kAvx512Measures, avx512};
  const Target bf16{&kAvx512Bf16Kernels, &kAvx512Bf16Measures, avx512_bf16};
  return {{&kScalarKernels, &kScalarMeasures, true},
          zen ? f16c : shift,
          zen ? shift : f16c,
          zen ? f32 : bf16,
          zen ? bf16 : f32};
}

Target select(const std::string& name) {
  const std::vector<Target> all = targets();
  for (auto target = all.rbegin(); target != all.rend(); ++target) {
    if (target->supported && (name.empty() || name == target->kernels->name)) return *target;
  }
  throw std::invalid_argument("no target '" + name + "' for this machine");
}

}  // namespace

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.supported) names.emplace_back(target.kernels->name);
  }
  return names;
}

const Kernels& select_kernels(const std::string& name) { return *select(name).kernels; }

const Measures& select_measures(const std::string& name) { return *select(name).measures; }

}  // namespace localmoe

#include "isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>

namespace localmoe {
namespace {

struct Target {
  const Kernels* kernels;
  const Measures* measures;
  bool supported;
};

// Whether AMX multiplies BF16 tiles here. Linux gives a process their registers when it asks for them.
bool has_amx_bf16() {
  constexpr unsigned kBf16AndTile = 1U << 22 | 1U << 24;
  constexpr unsigned kOsSavesWide = 1U << 27;
  constexpr long kAskForState = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsSavesWide) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16AndTile) != kBf16AndTile) return false;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

std::vector<Target> targets() {
  __builtin_cpu_init();  // the builtins test XCR0 too, so a kernel that does not save wide registers counts as "no"
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
  const Target f16c{&kAvx2Kernels, &kAvx2Measures, avx2};
  const Target shift{&kAvx2ZenKernels, &kAvx2ZenMeasures, avx2};
  // Where FP32 denormals cost nothing.
  const bool zen = __builtin_cpu_is("amd") != 0;
  static const bool amx_bf16 = avx512 && has_amx_bf16();
  const Target half{&kAvx512Kernels, &kAvx512Measures, avx512};
  const Target wide_shift{&kAvx512ZenKernels, &kAvx512ZenMeasures, avx512};
  return {{&kScalarKernels, &kScalarMeasures, true},
          zen ? f16c : shift,
          zen ? shift : f16c,
          zen ? half : wide_shift,
          {&kAvx512Bf16Kernels, &kAvx512Bf16Measures, avx512_bf16},
          zen ? wide_shift : half,
          {&kAmxBf16Kernels, &kAmxBf16Measures, amx_bf16}};
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

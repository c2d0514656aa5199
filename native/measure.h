// What a target's cores can do at best, to measure kernels against: streaming reads and FMA chains.
#pragma once

#include <cstddef>
#include <cstdint>

namespace localmoe {

struct Measures {
  const char* const* reader_names;  // streaming-read variants, ending in null
  // Reads [data, data + bytes) once in the given variant; bytes is a multiple of 4096. Returns a digest of all of it.
  uint64_t (*read)(int variant, const uint8_t* data, size_t bytes);
  int num_fmas;  // variants of fma: how many chains there are
  // Independent FMA chains in registers, `steps` steps long. Returns the FLOPs done; writes a digest to *sink.
  double (*fma)(int variant, int64_t steps, float* sink);
};

extern const Measures kScalarMeasures;
extern const Measures kAvx2Measures;
extern const Measures kAvx2ZenMeasures;
extern const Measures kAvx512Measures;
extern const Measures kAvx512ZenMeasures;
extern const Measures kAvx512Bf16Measures;
extern const Measures kAmxBf16Measures;

}  // namespace localmoe

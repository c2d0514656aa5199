// Weights from the buffer that they were read into to where they rest, each value looked at on the way; or where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

namespace localmoe {

// What makes a value bad: FP8's NaN codes; a BF16 or FP32 that is not finite; a scale that is not finite and positive.
enum class ValueKind : int { fp8, bf16, f32, scale };

// Copies `bytes` bytes, a multiple of the values' size, until a bad value is met. Returns the place of its first byte, or
// -1 when there is none; what lies at and behind a bad value in `to` is undefined. Any alignment.
ptrdiff_t copy_values(const uint8_t* from, uint8_t* to, size_t bytes, ValueKind kind);

// Only looks: the place of the first bad value's first byte, or -1.
ptrdiff_t find_bad_value(const uint8_t* values, size_t bytes, ValueKind kind);

}  // namespace localmoe

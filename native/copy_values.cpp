#pragma GCC optimize("O3")  // its loops become vectors

#include "copy_values.h"

#include <algorithm>
#include <cstring>

namespace localmoe {
namespace {

// A bad value has `top` set in mark(value). Marks are ORed together, which compilers turn into vectors.
struct Fp8 {
  using Value = uint8_t;
  static constexpr Value top = 0x80;
  static Value mark(Value v) { return static_cast<Value>((v & 0x7f) + 1); }
};
struct Bf16 {
  using Value = uint16_t;
  static constexpr Value top = 0x8000;
  static Value mark(Value v) { return static_cast<Value>((v & 0x7fff) + 0x80); }
};
struct F32 {
  using Value = uint32_t;
  static constexpr Value top = 0x80000000;
  static Value mark(Value v) { return (v & 0x7fffffff) + 0x00800000; }
};
struct Scale {
  using Value = uint32_t;
  static constexpr Value top = 0x80000000;
  static Value mark(Value v) { return (v + 0x00800000) | (v - 1); }
};

template <class Kind>
ptrdiff_t first_bad(const uint8_t* bytes, size_t num_bytes) {
  using Value = typename Kind::Value;
  for (size_t at = 0; at < num_bytes; at += sizeof(Value)) {
    Value value;
    std::memcpy(&value, bytes + at, sizeof value);
    if (Kind::mark(value) & Kind::top) return static_cast<ptrdiff_t>(at);
  }
  return -1;
}

template <class Kind>
bool has_bad(const uint8_t* bytes, size_t num_bytes) {
  using Value = typename Kind::Value;
  Value marks = 0;
  for (size_t at = 0; at < num_bytes; at += sizeof(Value)) {
    Value value;
    std::memcpy(&value, bytes + at, sizeof value);
    marks = static_cast<Value>(marks | Kind::mark(value));
  }
  return (marks & Kind::top) != 0;
}

constexpr size_t kChunk = 16 << 10;  // stays in L1 between being copied and being looked at

template <class Kind>
ptrdiff_t find(const uint8_t* values, size_t num_bytes) {
  for (size_t at = 0; at < num_bytes; at += kChunk) {
    const size_t n = std::min(kChunk, num_bytes - at);
    if (has_bad<Kind>(values + at, n)) return static_cast<ptrdiff_t>(at) + first_bad<Kind>(values + at, n);
  }
  return -1;
}

template <class Kind>
ptrdiff_t copy(const uint8_t* from, uint8_t* to, size_t num_bytes) {
  for (size_t at = 0; at < num_bytes; at += kChunk) {
    const size_t n = std::min(kChunk, num_bytes - at);
    std::memcpy(to + at, from + at, n);
    if (has_bad<Kind>(from + at, n)) return static_cast<ptrdiff_t>(at) + first_bad<Kind>(from + at, n);
  }
  return -1;
}

}  // namespace

ptrdiff_t copy_values(const uint8_t* from, uint8_t* to, size_t bytes, ValueKind kind) {
  switch (kind) {
    case ValueKind::fp8: return copy<Fp8>(from, to, bytes);
    case ValueKind::bf16: return copy<Bf16>(from, to, bytes);
    case ValueKind::f32: return copy<F32>(from, to, bytes);
    default: return copy<Scale>(from, to, bytes);
  }
}

ptrdiff_t find_bad_value(const uint8_t* values, size_t bytes, ValueKind kind) {
  switch (kind) {
    case ValueKind::fp8: return find<Fp8>(values, bytes);
    case ValueKind::bf16: return find<Bf16>(values, bytes);
    case ValueKind::f32: return find<F32>(values, bytes);
    default: return find<Scale>(values, bytes);
  }
}

}  // namespace localmoe

#pragma GCC optimize("O3")  // its loops become vectors

#include "copy_values.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace localmoe {
namespace {

// A bad value has `top` set in mark(value). Marks are ORed together, of many values at once.
struct Fp8 {
  using Value = uint8_t;
  static constexpr Value top = 0x80;
  template <class V>
  static V mark(V v) {
    return static_cast<V>((v & Value{0x7f}) + Value{1});
  }
};
struct Bf16 {
  using Value = uint16_t;
  static constexpr Value top = 0x8000;
  template <class V>
  static V mark(V v) {
    return static_cast<V>((v & Value{0x7fff}) + Value{0x80});
  }
};
struct F32 {
  using Value = uint32_t;
  static constexpr Value top = 0x80000000;
  template <class V>
  static V mark(V v) {
    return (v & 0x7fffffffU) + 0x00800000U;
  }
};
struct Scale {
  using Value = uint32_t;
  static constexpr Value top = 0x80000000;
  template <class V>
  static V mark(V v) {
    return (v + 0x00800000U) | (v - 1U);
  }
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

constexpr size_t kLine = 64;

// Lines of values, past the caches to where they are not needed soon: ordinary stores would bring what lies there in first.
// Whether one is bad. `to` is the beginning of a line.
template <class Kind>
bool stream(const uint8_t* from, uint8_t* to, size_t num_bytes) {
  using Value = typename Kind::Value;
  typedef Value Vector __attribute__((vector_size(16)));
  Vector marks{};
  for (size_t at = 0; at < num_bytes; at += kLine) {
    Vector line[kLine / sizeof(Vector)];
    std::memcpy(line, from + at, kLine);
    for (size_t i = 0; i < kLine / sizeof(Vector); ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, reinterpret_cast<__m128i>(line[i]));
      marks |= Kind::mark(line[i]);
    }
  }
  return _mm_movemask_epi8(reinterpret_cast<__m128i>(marks & (Vector{} + Kind::top))) != 0;
}

constexpr size_t kChunk = 16 << 10;  // of which all are looked at before the bad one is looked for

template <class Kind>
ptrdiff_t find(const uint8_t* values, size_t num_bytes) {
  for (size_t at = 0; at < num_bytes; at += kChunk) {
    const size_t n = std::min(kChunk, num_bytes - at);
    if (has_bad<Kind>(values + at, n)) return static_cast<ptrdiff_t>(at) + first_bad<Kind>(values + at, n);
  }
  return -1;
}

// Bytes [begin, end). Returns the place of the first bad value among them, or -1.
template <class Kind, bool kStreams>
ptrdiff_t copy_run(const uint8_t* from, uint8_t* to, size_t begin, size_t end) {
  for (size_t at = begin; at < end; at += kChunk) {
    const size_t n = std::min(kChunk, end - at);
    bool is_bad = false;
    if constexpr (kStreams) {
      is_bad = stream<Kind>(from + at, to + at, n);
    } else {
      std::memcpy(to + at, from + at, n);
      is_bad = has_bad<Kind>(from + at, n);
    }
    if (is_bad) return static_cast<ptrdiff_t>(at) + first_bad<Kind>(from + at, n);
  }
  return -1;
}

template <class Kind>
ptrdiff_t copy(const uint8_t* from, uint8_t* to, size_t num_bytes) {
  size_t lines = std::min(num_bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  if (lines % sizeof(typename Kind::Value) != 0) lines = num_bytes;  // values lie across lines
  const size_t lines_end = lines + (num_bytes - lines) / kLine * kLine;
  ptrdiff_t bad = copy_run<Kind, false>(from, to, 0, lines);
  if (bad < 0) bad = copy_run<Kind, true>(from, to, lines, lines_end);
  if (bad < 0) bad = copy_run<Kind, false>(from, to, lines_end, num_bytes);
  _mm_sfence();
  return bad;
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

#include "read_values.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace localmoe {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kChunk = 64 << 10;  // is in L2 when it is given up

int64_t size_of(ValueKind kind) { return kind == ValueKind::fp8 ? 1 : kind == ValueKind::bf16 ? 2 : 4; }

// Tells this core's caches to give lines up that whoever fills the buffer next will write to: it then need not ask for them
// back, and disks of virtual machines are a sixth faster. CLDEMOTE; processors that do not have it do nothing.
void demote(const uint8_t* bytes, int64_t count) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < count; at += kLine) asm volatile(".byte 0x0f, 0x1c, 0x07" : : "D"(bytes + at) : "memory");
}

// Bytes [first, end) of a part, from `from`. A value that lies across two reads is looked at in its place, once it is complete.
bool put(const ValuePart& part, int64_t first, int64_t end, const uint8_t* from) {
  const int64_t size = size_of(part.kind);
  const int64_t begin = std::min(end, (first + size - 1) / size * size);
  const int64_t stop = std::max(begin, end / size * size);
  std::memcpy(part.to + first, from, static_cast<size_t>(begin - first));
  if (begin > first && begin % size == 0 && find_bad_value(part.to + begin - size, static_cast<size_t>(size), part.kind) >= 0) return false;
  for (int64_t at = begin; at < stop; at += kChunk) {
    const int64_t n = std::min(kChunk, stop - at);
    if (copy_values(from + (at - first), part.to + at, static_cast<size_t>(n), part.kind) >= 0) return false;
    demote(from + (at - first), n);
  }
  std::memcpy(part.to + stop, from + (stop - first), static_cast<size_t>(end - stop));
  return true;
}

}  // namespace

bool Gate::enter() {
  num_inside_.fetch_add(1);
  if (!shut_.load()) return true;
  leave();
  return false;
}

void Gate::shut() {
  shut_.store(true);
  while (num_inside_.load() > 0) std::this_thread::yield();
}

bool read_values(int fd, int64_t start, int64_t stop, const std::vector<ValuePart>& parts, uint8_t* buffer, int64_t room, Gate& gate) {
  auto part = parts.begin();
  for (int64_t at = start; at < stop;) {
    const int64_t wanted = std::min(room, (stop - at + kBlock - 1) / kBlock * kBlock);
    const int64_t got = pread(fd, buffer, static_cast<size_t>(wanted), at);
    const int64_t end = std::min(stop, at + got);
    if (got <= 0 || (end < stop && got % kBlock != 0) || !gate.enter()) return false;
    bool is_good = true;
    for (auto p = part; is_good && p != parts.end() && p->start < end; ++p) {
      const int64_t first = std::max(at, p->start);
      is_good = put(*p, first - p->start, std::min(end, p->stop) - p->start, buffer + (first - at));
    }
    gate.leave();
    if (!is_good) return false;
    while (part != parts.end() && part->stop <= end) ++part;
    at = end;
  }
  return true;
}

}  // namespace localmoe

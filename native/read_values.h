// Weights from a file to where they rest, by direct reads of half a megabyte or so, each value looked at on the way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "copy_values.h"

namespace localmoe {

// Between those who read and the memory that they fill: once it is shut nobody touches that any more, and a read that
// hangs holds up nobody.
class Gate {
 public:
  bool enter();  // false: it is shut
  void leave() { num_inside_.fetch_sub(1); }
  void shut();  // returns when nobody is inside

 private:
  std::atomic<bool> shut_{false};
  std::atomic<int> num_inside_{0};
};

// Whole values: [start, stop) of the file go to `to`.
struct ValuePart {
  int64_t start;
  int64_t stop;
  uint8_t* to;
  ValueKind kind;
};

// Puts `parts` into place, which lie in [start, stop) of the file `fd`, in its order; through `buffer`, of `room` bytes.
// `start`, `room` and the buffer's address are multiples of a disk's block. False where a read did not give what was asked
// for, a value is bad or the gate was shut: some parts may then be in place.
bool read_values(int fd, int64_t start, int64_t stop, const std::vector<ValuePart>& parts, uint8_t* buffer, int64_t room, Gate& gate);

}  // namespace localmoe

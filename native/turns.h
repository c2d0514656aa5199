// A program that takes turns with a device: it waits until the device has written a word of memory that both see, runs some
// ops, and writes another word that the device waits for. One call for all turns of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace localmoe {

// Ops [first_op, end_op), once `*wait_for` is at `wait_value`; then `*tell` is set to `tell_value`. Values count from the
// step's first one. Either word may be null.
struct Turn {
  int first_op;
  int end_op;
  ExpertWindow window;
  const int32_t* wait_for;
  int32_t wait_value;
  int32_t* tell;
  int32_t tell_value;
};

// Whether `*word` is at `value`, or above, before `deadline_ns` of now_ns() and before `cancel` (or null) is set. What the
// writer wrote before is seen then. For `awake_ns` it only yields to others, then it sleeps between looks.
bool wait_word(const int32_t* word, int32_t value, const Flag* cancel, int64_t deadline_ns, int64_t awake_ns);

// All turns, with words counted from `base`. `times` gets begin and end of each in seconds of now_ns().
// False when cancelled.
bool take_turns(Program& program, Pool& pool, bool is_urgent, const Flag* cancel, const Run& run, const std::vector<Turn>& turns,
                int32_t base, double* times);

}  // namespace localmoe

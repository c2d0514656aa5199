// AMX's tile registers: Linux gives them to a process that asks.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

inline void ask_for_tile_registers() { syscall(SYS_arch_prctl, 0x1023, 18); }  // ARCH_REQ_XCOMP_PERM, XTILEDATA

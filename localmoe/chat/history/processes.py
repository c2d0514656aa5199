"""Who writes an answer, so that a later process can tell whether its writer was killed."""

import os
from pathlib import Path


def this_process() -> str:
    """A name for this process that no later one has: its id and when it started."""
    return f"{os.getpid()}.{_started(os.getpid())}"


def is_alive(writer: str | None) -> bool:
    """Whether the process that `this_process` named `writer` still runs."""
    pid, _, started = (writer or "").partition(".")
    return pid.isdigit() and bool(started) and _started(int(pid)) == started


def _started(pid: int) -> str:
    """When process `pid` started, in the kernel's ticks; empty when there is none, or only what is left of one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]

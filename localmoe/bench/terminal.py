"""A program on a pseudo-terminal, for suites that measure what a person sees."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import localmoe

ROWS, COLUMNS = 40, 120
_SHAPE = {"TERM": "xterm-256color", "LINES": str(ROWS), "COLUMNS": str(COLUMNS)}  # programs believe these first
_OVERLAP_BYTES = 256  # of pieces: what is looked for is shorter, colours included
_ESCAPE = re.compile(rb"\x1b(\[[0-9;:?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|.)")


class Terminal:
    """Python's `program` with `arguments`. What it writes is read only while something is waited for."""

    def __init__(self, program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=Path(localmoe.__file__).parent.parent,  # the child runs what this process does, wherever it was begun
            env={**os.environ, **_SHAPE, **(environment or {})},
        )
        os.close(theirs)
        self._seen = b""

    @property
    def seen(self) -> bytes:
        """What came since the last keys, as far as it was waited for."""
        return self._seen

    def press(self, keys: str) -> None:
        """Types `keys`; what is waited for from now on comes after them."""
        self._seen = b""
        os.write(self._ours, keys.encode())

    def shows(self, wanted: Callable[[bytes], object], limit_s: float) -> bool:
        """Waits until `wanted` is true of what came since the last keys; False when the program ends or time is up.

        It is asked about all of that first, then about each new piece with a little of what came before: what is
        measured needs the cores more.
        """
        deadline_s = time.perf_counter() + limit_s
        start = 0
        while not wanted(self._seen[start:]):
            left_s = deadline_s - time.perf_counter()
            if left_s <= 0 or not select.select([self._ours], [], [], left_s)[0]:
                return False
            start = max(0, len(self._seen) - _OVERLAP_BYTES)
            try:
                self._seen += os.read(self._ours, 65536)
            except OSError:  # Linux says EIO when the program has ended
                return False
        return True

    def close(self) -> None:
        """Ends the program at once: it has nothing to save, and leaving would take its time."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._ours)


def plain(output: bytes) -> str:
    """`output` without colours and movements: what was written one after the other stays together."""
    return _ESCAPE.sub(b"", output).decode(errors="replace")

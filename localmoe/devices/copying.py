"""Threads that carry out copies, piece by piece, each with a bounce buffer of its own.

Copies begin in the order in which they are submitted and may overlap: while the last pieces of one are put into place,
the first of the next are read. A copy that is cancelled is over once nothing of it writes to its target: it waits for
reads that write there, and for no others. What a late read brings to a bounce buffer is dropped.
"""

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from localmoe.devices.device import Bytes, Step
from localmoe.errors import CancelledError

PIECE_BYTES = 4 << 20  # of a copy from memory
ALIGN_BYTES = 4096  # what direct reads land on
PAUSE_S = 0.01  # longest sleep under a bandwidth cap before a cancel is looked at

Probe = Callable[[str], None]  # told what begins; may raise, or take its time: faults of tests


class MemoryStep:
    """A piece of a copy from memory."""

    buffer_bytes = 0
    in_place = False

    def __init__(self, target: Bytes, source: Bytes) -> None:
        self._target = target
        self._source = source
        self.nbytes = len(source)

    def fetch(self, buffer: Bytes) -> None:
        """Nothing to read."""

    def place(self, buffer: Bytes) -> None:
        np.copyto(self._target, self._source)


def memory_steps(target: Bytes, source: Bytes) -> list[MemoryStep]:
    """`source` in pieces."""
    assert len(target) == len(source), "a copy has one length"
    return [
        MemoryStep(target[at : at + PIECE_BYTES], source[at : at + PIECE_BYTES])
        for at in range(0, len(source), PIECE_BYTES)
    ]


class Copy:
    """One copy under way. `over` is set once nothing of it writes any more; `error` says why it is not complete."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._waiting = deque(steps)
        self._num_left = len(steps)
        self._num_writing = 0
        self._lock = threading.Lock()
        if not steps:
            self.over.set()

    def cancel(self, error: BaseException) -> None:
        """Ends it: pieces that have not begun do not, those that are being read come to nothing."""
        with self._lock:
            if not self.over.is_set():
                self.error = self.error or error
                self._waiting.clear()
                self._end_if_done()

    @property
    def is_cancelled(self) -> bool:
        return self.error is not None

    def next(self) -> Step | None:
        """A piece to carry out; None when none is left to begin."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def write(self, work: Callable[[], None], *, last: bool) -> bool:
        """Does what writes to the target, unless the copy was cancelled; tells whether it did. `last` ends a piece."""
        with self._lock:
            if self.error:
                return False
            self._num_writing += 1
        failed: BaseException | None = None
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the copy raises it
            failed = error
        with self._lock:
            self._num_writing -= 1
            self._num_left -= last
            if failed:
                self.error = self.error or failed
                self._waiting.clear()
            self._end_if_done()
        return failed is None

    def _end_if_done(self) -> None:
        if not self._num_writing and (self.error or not self._num_left):
            self.over.set()


class Copier:
    """`count` threads. `cap` limits all of them together, in bytes per second."""

    def __init__(self, name: str, count: int, cap: float | None, probe: Probe) -> None:
        self.cap = cap
        self._name = name
        self._count = count
        self._probe = probe
        self._copies: deque[Copy] = deque()
        self._change = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._num_bytes = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._num_active = 0
        self._next_s = 0.0  # under a cap: when the next piece may be through

    @property
    def rate(self) -> float | None:
        """Bytes per second while a piece was under way; None before the first."""
        with self._change:
            now_s = 0.0 if self._busy_since is None else time.perf_counter() - self._busy_since
            busy_s = self._busy_s + now_s
            return self._num_bytes / busy_s if self._num_bytes and busy_s else None

    def submit(self, copy: Copy) -> None:
        """Begins `copy` behind those before it."""
        with self._change:
            while len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, name=f"localmoe-copy-{self._name}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._copies.append(copy)
            self._change.notify_all()

    def close(self) -> None:
        """Lets the threads go; one that a disk holds up leaves when the read returns."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        buffer = np.empty(0, np.uint8)
        while taken := self._take():
            copy, step = taken
            try:
                if len(buffer) < step.buffer_bytes:
                    buffer = _aligned(step.buffer_bytes)
                self._probe("copy")
                placed = self._carry_out(copy, step, buffer)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the copy raises it
                copy.cancel(error)
                placed = False
            self._leave(step.nbytes if placed else 0)

    def _carry_out(self, copy: Copy, step: Step, buffer: Bytes) -> bool:
        """Whether all of `step` is in its place."""
        if not step.in_place:
            step.fetch(buffer)
        elif not copy.write(partial(step.fetch, buffer), last=False):
            return False
        self._hold_back(copy, step.nbytes)
        return copy.write(partial(step.place, buffer), last=True)

    def _take(self) -> tuple[Copy, Step] | None:
        with self._change:
            while not self._closed:
                while self._copies:
                    if step := self._copies[0].next():
                        self._num_active += 1
                        if self._busy_since is None:
                            self._busy_since = time.perf_counter()
                        return self._copies[0], step
                    self._copies.popleft()
                self._change.wait()
        return None

    def _leave(self, nbytes: int) -> None:
        with self._change:
            self._num_bytes += nbytes
            self._num_active -= 1
            if not self._num_active and self._busy_since is not None:
                self._busy_s += time.perf_counter() - self._busy_since
                self._busy_since = None

    def _hold_back(self, copy: Copy, nbytes: int) -> None:
        """Under a cap: until a link of that rate would have brought this piece too."""
        if not self.cap:
            return
        with self._change:
            self._next_s = end_s = max(self._next_s, time.perf_counter()) + nbytes / self.cap
        while (left_s := end_s - time.perf_counter()) > 0 and not copy.is_cancelled:
            time.sleep(min(left_s, PAUSE_S))


def cancelled() -> CancelledError:
    """What a copy ends with that nobody wants any more."""
    return CancelledError("the copy was dropped.")


def _aligned(nbytes: int) -> Bytes:
    base = np.frombuffer(mmap.mmap(-1, nbytes + ALIGN_BYTES), np.uint8)
    start = -base.ctypes.data % ALIGN_BYTES
    return base[start : start + nbytes]

"""Copies of CUDA devices: what memory they are between, what they reach, and pieces from files by way of the host."""

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from localmoe.devices.cuda_event import poll
from localmoe.devices.cuda_runtime import Runtime
from localmoe.devices.device import Bytes, Step

LEAST_METERED = 1 << 16  # bytes: a smaller copy is all latency
PATIENCE_S = 3600.0  # longer than any copy: a GPU that has failed ends a wait by itself


def as_bytes(memory: Any) -> Any:
    """Contiguous memory of the system or a GPU as a flat uint8 tensor, nothing copied."""
    if isinstance(memory, np.ndarray):
        assert memory.flags.c_contiguous, "a copy is of contiguous memory"
        return torch.from_numpy(memory.reshape(-1).view(np.uint8))
    assert memory.is_contiguous(), "a copy is of contiguous memory"
    return memory.reshape(-1).view(torch.uint8)


class Bounce:
    """A page-locked buffer for each thread that carries out copies from files."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mine = threading.local()

    def buffer(self, nbytes: int) -> Bytes:
        """This thread's, with that much room at least."""
        if getattr(self._mine, "room", 0) < nbytes:
            self._mine.memory = self._runtime.host_alloc(nbytes)
            self._mine.room = nbytes
        buffer: Bytes = self._mine.memory.numpy()
        return buffer


class BouncedStep:
    """A piece of a file on its way to a GPU: fetched into page-locked memory, then placed on the stream.

    `place` of the step issues copies from the buffer, which has to stay as it is until they are done.
    """

    in_place = False
    buffer_bytes = 0

    def __init__(self, step: Step, bounce: Bounce, runtime: Runtime, stream: Any) -> None:
        assert not step.in_place, "a GPU's memory takes no reads from disk"
        self._step = step
        self._bounce = bounce
        self._runtime = runtime
        self._stream = stream
        self.nbytes = step.nbytes

    def fetch(self, buffer: Bytes) -> None:
        self._step.fetch(self._bounce.buffer(self._step.buffer_bytes))

    def place(self, buffer: Bytes) -> None:
        mine, done = self._bounce.buffer(self._step.buffer_bytes), self._runtime.new_event()
        self._runtime.issue(self._stream, lambda: self._step.place(mine))
        self._runtime.record(self._stream, done)
        poll(lambda: self._runtime.reached(done), time.perf_counter() + PATIENCE_S)


class Meter:
    """Bytes per second of copies while any was under way, by the GPU's clock."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._under_way: deque[tuple[Any, Any, int, Any]] = deque()
        self._num_bytes = 0
        self._busy_s = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def measured(self, stream: Any, nbytes: int, held: Any) -> Iterator[None]:
        """What is issued to `stream` within copies `nbytes`; `held` lives until that is done."""
        if nbytes < LEAST_METERED:
            yield
            return
        first, last = self._runtime.new_event(), self._runtime.new_event()
        self._runtime.record(stream, first)
        yield
        self._runtime.record(stream, last)
        with self._lock:
            self._under_way.append((first, last, nbytes, held))
            self._gather()

    @property
    def rate(self) -> float | None:
        """None before the first copy is done."""
        with self._lock:
            self._gather()
            return self._num_bytes / self._busy_s if self._busy_s else None

    def _gather(self) -> None:
        while self._under_way and self._runtime.reached(self._under_way[0][1]):
            first, last, nbytes, _ = self._under_way.popleft()
            self._num_bytes += nbytes
            self._busy_s += self._runtime.seconds(first, last)


class LockedMemory:
    """What was page-locked, slice by slice. A copy by the GPU itself must not cross the edge of a slice.

    Shared by all devices: memory is locked for all of them.
    """

    def __init__(self) -> None:
        self._slices: dict[int, int] = {}  # bytes by address
        self._edges: list[int] = []  # addresses, sorted

    def add(self, address: int, nbytes: int) -> None:
        """A slice."""
        self._slices[address] = nbytes
        self._sort()

    def remove(self, address: int) -> None:
        """It is locked no more."""
        self._slices.pop(address, None)
        self._sort()

    def cut(self, target: Any, source: Any) -> Sequence[tuple[Any, Any]]:
        """A copy as such of parts that lie within one slice, or outside of all."""
        assert len(target) == len(source), "a copy has one length"
        cuts = sorted({*self._within(target), *self._within(source), 0, len(source)})
        return [(target[a:b], source[a:b]) for a, b in pairwise(cuts)]

    def _sort(self) -> None:
        self._edges = sorted({edge for start, size in self._slices.items() for edge in (start, start + size)})

    def _within(self, memory: Any) -> list[int]:
        """Edges of slices within `memory`, as offsets in bytes."""
        if memory.device.type != "cpu":
            return []
        start, edges = memory.data_ptr(), self._edges
        return [edge - start for edge in edges[bisect_right(edges, start) : bisect_left(edges, start + len(memory))]]

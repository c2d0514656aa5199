"""What was done, where and when: one span for each stage of each group and layer."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Literal

from localmoe.devices.device import Bytes, Step

MOST_SPANS = 1 << 16  # the oldest go first

Stage = Literal["load", "attention", "shared", "experts", "exchange", "unload", "pass"]


@dataclass(frozen=True, slots=True)
class Span:
    """One interval. Seconds are time.perf_counter()'s.

    load: a group's bytes, from the first read to the last byte in place. attention: all of a layer that is not routed
    experts, from the end of the layer before; the head is that of a layer behind the last. shared: shared
    experts, where others compute the routed ones meanwhile. experts: a group's part of all tokens. exchange: rows
    between devices. unload: what leaves a device for where others want it. pass: the whole network, where one call
    computes it.

    `layer` counts layers with routed experts, `group` the groups of the device in the pass, -1 where there is none.
    `num_bytes` is what was moved, 0 where nothing was.
    """

    device: str
    stage: Stage
    layer: int
    group: int
    start_s: float
    end_s: float
    num_bytes: int = 0


class Spans:
    """A bounded buffer; any thread may add, and look."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=most)
        self._count = 0
        self._lock = Lock()

    def add(self, span: Span) -> None:
        """The oldest one goes when the buffer is full."""
        with self._lock:
            self._spans.append(span)
            self._count += 1

    def all(self) -> tuple[Span, ...]:
        """In the order in which they were added: nearly that of their ends."""
        with self._lock:
            return tuple(self._spans)

    def added_from(self, count: int) -> tuple[Sequence[Span], int]:
        """What was added since there were `count` in all, as far as it is still there, and how many there are now."""
        with self._lock:
            num_new = min(self._count - count, len(self._spans))
            newest = [self._spans[-n] for n in range(num_new, 0, -1)]
            return newest, self._count


class TimedStep:
    """A step that adds to `times` when it began and when it ended."""

    def __init__(self, step: Step, times: list[float]) -> None:
        self._step = step
        self._times = times
        self.nbytes = step.nbytes
        self.buffer_bytes = step.buffer_bytes
        self.in_place = step.in_place

    def fetch(self, buffer: Bytes) -> None:
        self._times.append(perf_counter())
        self._step.fetch(buffer)

    def place(self, buffer: Bytes) -> None:
        self._step.place(buffer)
        self._times.append(perf_counter())

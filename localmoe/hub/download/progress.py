"""How a pull is doing: events for whoever watches, and the meter that they are made from."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from localmoe.events import Event

WINDOW_S = 8.0  # of the rate

FileState = Literal["checking", "fetching", "waiting"]


@dataclass(frozen=True, slots=True)
class FileProgress:
    """A file that is being worked on."""

    name: str
    state: FileState
    done_bytes: int
    total_bytes: int
    rate_bytes_s: float


@dataclass(frozen=True, slots=True)
class Pulling(Event):
    """A few times a second; `files` are those under way."""

    done_bytes: int  # of all files, what was here before included
    total_bytes: int
    rate_bytes_s: float
    eta_s: float | None
    num_done: int  # files
    num_files: int
    files: tuple[FileProgress, ...]


@dataclass(frozen=True, slots=True)
class Verifying(Pulling):
    """The same of files that are only read."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something that a person should know of: a wait, a new try."""

    text: str


@dataclass(frozen=True, slots=True)
class Pulled(Event):
    """All files are here and right."""

    path: str  # the model's folder
    fetched_bytes: int  # in this run


class Gauge:
    """One file's bytes and their rate."""

    def __init__(self, name: str, done_bytes: int, total_bytes: int) -> None:
        self.name = name
        self.state: FileState = "fetching"
        self.done_bytes = done_bytes
        self.total_bytes = total_bytes
        self.rate = Rate()

    def shown(self) -> FileProgress:
        """As an event has it."""
        return FileProgress(self.name, self.state, self.done_bytes, self.total_bytes, self.rate.bytes_s())


class Rate:
    """Bytes a second over the last seconds."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._total = 0
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    @property
    def total(self) -> int:
        """All bytes so far."""
        return self._total

    def add(self, num_bytes: int) -> None:
        """Counts what just came."""
        with self._lock:
            self._total += num_bytes
            now = time.monotonic()
            if now - self._samples[-1][0] >= WINDOW_S / 32:
                self._samples.append((now, self._total))
            while now - self._samples[0][0] > WINDOW_S and len(self._samples) > 1:
                self._samples.popleft()

    def bytes_s(self) -> float:
        """0 when nothing came for a while."""
        with self._lock:
            now = time.monotonic()
            began_s, before = self._samples[0]
            if now - self._samples[-1][0] > WINDOW_S or now - began_s < WINDOW_S / 32:
                return 0.0
            return (self._total - before) / (now - began_s)


class Board:
    """The gauges of all files, of which several threads work on some."""

    def __init__(self, gauges: Iterable[Gauge]) -> None:
        self._gauges = {gauge.name: gauge for gauge in gauges}
        self._busy: list[Gauge] = []
        self._num_done = 0
        self._lock = Lock()
        self.rate = Rate()

    def __getitem__(self, name: str) -> Gauge:
        return self._gauges[name]

    @property
    def done_bytes(self) -> int:
        """Of all files."""
        return sum(gauge.done_bytes for gauge in self._gauges.values())

    @contextmanager
    def busy(self, gauge: Gauge) -> Iterator[None]:
        """Within, the file is shown."""
        with self._lock:
            self._busy.append(gauge)
        try:
            yield
        finally:
            with self._lock:
                self._busy.remove(gauge)

    def came(self, gauge: Gauge, num_bytes: int, done_bytes: int) -> None:
        """More of a file."""
        gauge.rate.add(num_bytes)
        self.rate.add(num_bytes)
        gauge.done_bytes = done_bytes

    def done(self, gauge: Gauge) -> None:
        """A file is complete."""
        gauge.done_bytes = gauge.total_bytes
        with self._lock:
            self._num_done += 1

    def shown(self) -> tuple[int, int, float, float | None, int, int, tuple[FileProgress, ...]]:
        """The fields of an event."""
        with self._lock:
            busy, num_done = tuple(gauge.shown() for gauge in self._busy), self._num_done
        done, total = self.done_bytes, sum(gauge.total_bytes for gauge in self._gauges.values())
        rate = self.rate.bytes_s()
        return done, total, rate, (total - done) / rate if rate > 0 else None, num_done, len(self._gauges), busy

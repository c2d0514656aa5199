"""Streams and events of host devices: a stream is a thread that does what it was given, in order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.copying import Copier, Copy, Probe, cancelled, memory_steps
from localmoe.devices.device import Bytes, Event, Flag, Step
from localmoe.devices.host_flag import HostFlag

LOOK_S = 0.02  # how often a stream that waits looks whether it is wanted still


class HostEvent:
    """An event. It also carries the failure of the work before it."""

    def __init__(self) -> None:
        self._marks = 0  # how often it was recorded
        self._reached = 0
        self._error: BaseException | None = None
        self._reached_s: float | None = None
        self._change = threading.Condition()

    def query(self) -> bool:
        """As device.Event says; True for an event that never was recorded, as in CUDA."""
        return self.wait(0)

    def wait(self, timeout: float) -> bool:
        """As device.Event says."""
        return self.wait_for(self.marks, timeout)

    def wait_for(self, mark: int, timeout: float) -> bool:
        """The same for the point that was recorded as number `mark`."""
        with self._change:
            reached = self._change.wait_for(lambda: self._reached >= mark, timeout)
            if reached and self._error:
                raise self._error
            return reached

    @property
    def reached_s(self) -> float | None:
        """As device.Event says."""
        return self._reached_s

    @property
    def marks(self) -> int:
        """How often it was recorded."""
        return self._marks

    def mark(self) -> int:
        """Recorded once more: the number of this time."""
        with self._change:
            self._marks += 1
            self._error = self._reached_s = None
            return self._marks

    def reach(self, mark: int, error: BaseException | None) -> None:
        """That time's point is reached, or given up with `error`."""
        with self._change:
            if mark >= self._marks:
                self._error = error
                self._reached_s = time.perf_counter()
            self._reached = max(self._reached, mark)
            self._change.notify_all()


class _Work:
    """Something in a stream's order. `begin` may be called early, `do` in order, `drop` instead of it."""

    is_copy = False

    def begin(self) -> None: ...

    def do(self) -> None: ...

    def drop(self, error: BaseException) -> None: ...


class _Launch(_Work):
    def __init__(self, work: Callable[[], None], probe: Probe, kind: str) -> None:
        self._work = work
        self._probe = probe
        self._kind = kind

    def do(self) -> None:
        self._probe(self._kind)
        self._work()


class _CopyWork(_Work):
    is_copy = True

    def __init__(self, copier: Copier, copy: Copy) -> None:
        self._copier = copier
        self._copy = copy
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._copier.submit(self._copy)

    def do(self) -> None:
        self.begin()
        self._copy.over.wait()
        if self._copy.error:
            raise self._copy.error

    def drop(self, error: BaseException) -> None:
        self._copy.cancel(error)
        if self._begun:
            self._copy.over.wait()


class _Wait(_Work):
    def __init__(self, event: HostEvent) -> None:
        self._event = event
        self._mark = event.marks  # as recorded so far
        self._dropped = False

    def do(self) -> None:
        while not self._event.wait_for(self._mark, LOOK_S):
            if self._dropped:
                raise cancelled()

    def drop(self, error: BaseException) -> None:
        self._dropped = True


class _Record(_Work):
    def __init__(self, event: HostEvent) -> None:
        self.event = event
        self.mark = event.mark()


class _WriteFlag(_Work):
    def __init__(self, flag: HostFlag, value: int) -> None:
        flag.expect()
        self._flag = flag
        self._value = value

    def do(self) -> None:
        self._flag.set(self._value)

    def drop(self, error: BaseException) -> None:
        self._flag.fail(error)


class _WaitFlag(_Work):
    def __init__(self, flag: HostFlag, value: int) -> None:
        self._flag = flag
        self._value = value
        self._dropped = False

    def do(self) -> None:
        while not self._flag.wait(self._value, LOOK_S):
            if self._dropped:
                raise cancelled()

    def drop(self, error: BaseException) -> None:
        self._dropped = True


class HostStream:
    """device.Stream on a thread of its own. `failure()` tells why the device is lost, or None."""

    def __init__(self, name: str, copier: Copier, probe: Probe, failure: Callable[[], BaseException | None]) -> None:
        self._copier = copier
        self._probe = probe
        self._failure = failure
        self._queue: deque[_Work] = deque()
        self._current: _Work | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"localmoe-{name}", daemon=True)
        self._thread.start()

    def launch(self, work: Callable[[], None]) -> None:
        """As device.Stream says."""
        self._issue(_Launch(work, self._probe, "launch"))

    def copy_async(self, target: Bytes, source: Bytes | Sequence[Step]) -> None:
        """As device.Stream says. A copy begins early where nothing but copies is before it; it is over in order."""
        steps = memory_steps(target, source) if isinstance(source, np.ndarray) else source
        self._issue(_CopyWork(self._copier, Copy(steps)))

    def peer_copy(self, target: NDArray[Any], source: NDArray[Any]) -> None:
        """As device.Stream says."""
        self._issue(_Launch(lambda: np.copyto(target, source), self._probe, "peer"))

    def wait(self, event: Event) -> None:
        """As device.Stream says."""
        assert isinstance(event, HostEvent), "an event of another kind of device"
        self._issue(_Wait(event))

    def record(self, event: Event) -> None:
        """As device.Stream says."""
        assert isinstance(event, HostEvent), "an event of another kind of device"
        self._issue(_Record(event))

    def write_flag(self, flag: Flag, value: int) -> None:
        """As device.Stream says."""
        assert isinstance(flag, HostFlag), "a flag of another kind of device"
        self._issue(_WriteFlag(flag, value))

    def wait_flag(self, flag: Flag, value: int) -> None:
        """As device.Stream says."""
        assert isinstance(flag, HostFlag), "a flag of another kind of device"
        self._issue(_WaitFlag(flag, value))

    def reset(self) -> None:
        """As device.Stream says. What was launched and runs is waited for: it has to look at a flag of its own."""
        error = cancelled()
        with self._change:
            self._error = self._error or error
            if self._current:
                self._current.drop(error) if not self._current.is_copy else None
            for work in self._queue:
                work.drop(error)
            current = self._current
        if current is not None and current.is_copy:
            current.drop(error)
        with self._change:
            self._change.wait_for(lambda: not self._queue and self._current is None)
            self._error = None

    def close(self) -> None:
        """Ends the thread."""
        self.reset()
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _issue(self, work: _Work) -> None:
        with self._change:
            assert not self._closed, "the stream is closed"
            if work.is_copy and not self._error and not self._failure() and self._has_copies_only():
                work.begin()
            self._queue.append(work)
            self._change.notify_all()

    def _has_copies_only(self) -> bool:
        before = (w for w in (self._current, *self._queue) if w is not None)
        return all(w.is_copy or isinstance(w, _Record) for w in before)

    def _run(self) -> None:
        while work := self._next():
            error = self._error or self._failure()
            try:
                if error:
                    work.drop(error)
                else:
                    work.do()
            except BaseException as failed:  # noqa: BLE001 - carried by the events behind it
                error = failed
            if isinstance(work, _Record):
                work.event.reach(work.mark, error or self._failure())
            with self._change:
                self._error = self._error or error
                self._current = None
                self._change.notify_all()

    def _next(self) -> _Work | None:
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return None
            self._current = self._queue.popleft()
            return self._current

"""Events of CUDA devices. Each time one is recorded is a point of its own, so that who waits means that time."""

import threading
import time
from collections.abc import Callable
from typing import Any

from localmoe.devices.cuda_runtime import Runtime

SPIN_S = 200e-6  # of yielding, before a wait sleeps at all
SLEEP_S = 50e-6
MOST_SLEEP_S = 1e-3


class Origin:
    """An event, and the latest that it was on time.perf_counter()'s scale: known better with each one seen after it."""

    def __init__(self, runtime: Runtime, event: Any, latest_s: float) -> None:
        self.latest_s = latest_s
        self._runtime = runtime
        self._event = event

    def time_of(self, event: Any) -> float:
        """When `event`, reached since, was."""
        return self.latest_s + self._runtime.seconds(self._event, event)

    def seen(self, event: Any, now_s: float) -> None:
        """`event` was reached by `now_s`."""
        self.latest_s = min(self.latest_s, now_s - self._runtime.seconds(self._event, event))


class Clock:
    """The GPU's time on time.perf_counter()'s scale. Its own is exact for a while only: single precision, in ms."""

    RENEW_S = 60.0

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stream = runtime.new_stream()
        self._lock = threading.Lock()
        self._origin = self._now()

    def origin(self) -> Origin:
        """An event not long past, and when it was."""
        with self._lock:
            if time.perf_counter() - self._origin.latest_s > self.RENEW_S:
                self._origin = self._now()
            return self._origin

    def _now(self) -> Origin:
        event = self._runtime.new_event()
        self._runtime.record(self._stream, event)
        self._runtime.synchronize(self._stream)
        return Origin(self._runtime, event, time.perf_counter())


class Point:
    """One time that an event was recorded. `issued` once the stream has come to it, or given it up with `error`."""

    def __init__(self, runtime: Runtime, check: Callable[[], None]) -> None:
        self.handle = runtime.new_event()
        self.issued = threading.Event()
        self.origin: Origin | None = None  # of the clock, when it was issued
        self.error: BaseException | None = None
        self._runtime = runtime
        self._check = check
        self._reached = False

    def issue(self, error: BaseException | None) -> None:
        """Only the first time counts."""
        if not self.issued.is_set():
            self.error = error
            self.issued.set()

    def query(self) -> bool:
        """Whether it is reached; raises what the stream had failed with, and DeviceLostError."""
        if not self.issued.is_set():
            return False
        if self.error:
            raise self.error
        self._check()
        if not self._reached and self._runtime.reached(self.handle):
            self._reached = True
            if self.origin is not None:
                self.origin.seen(self.handle, time.perf_counter())
        return self._reached

    def wait(self, timeout: float) -> bool:
        """As query(), within `timeout` seconds."""
        end_s = time.perf_counter() + timeout
        if not self.issued.wait(timeout):
            return False
        return poll(self.query, end_s)

    @property
    def reached_s(self) -> float:
        """When that was."""
        assert self.origin is not None, "never issued"
        return self.origin.time_of(self.handle)


class CudaEvent:
    """device.Event: the point that it was recorded at last."""

    def __init__(self, guard: Callable[[Callable[[], bool]], bool]) -> None:
        self._guard = guard  # makes a failure of CUDA the device's
        self.point: Point | None = None

    def query(self) -> bool:
        """As device.Event says; True for an event that never was recorded."""
        point = self.point
        return point is None or self._guard(point.query)

    def wait(self, timeout: float) -> bool:
        """As device.Event says."""
        point = self.point
        return point is None or self._guard(lambda: point.wait(timeout))

    @property
    def reached_s(self) -> float | None:
        """As device.Event says."""
        point = self.point
        return point.reached_s if point is not None and self.query() else None


def poll(is_there: Callable[[], bool], end_s: float) -> bool:
    """Whether it is, until `end_s` of time.perf_counter(); sleeps longer the longer it takes."""
    start_s, sleep_s = time.perf_counter(), SLEEP_S
    while not is_there():
        now_s = time.perf_counter()
        if now_s >= end_s:
            return False
        if now_s - start_s < SPIN_S:
            time.sleep(0)
        else:
            time.sleep(min(sleep_s, end_s - now_s))
            sleep_s = min(MOST_SLEEP_S, 1.5 * sleep_s)
    return True

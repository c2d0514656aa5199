"""The view into the engine: what its loop looks at while it works, as events for whoever listens."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from localmoe.decode.runner import Runner
from localmoe.devices.spans import Span, Spans
from localmoe.engine.heat import ExpertHeat
from localmoe.engine.lanes import LaneWindow
from localmoe.events import Event, Workers

if TYPE_CHECKING:
    from localmoe.model.config import ModelConfig

HOST = "cpu"  # where a program works that does not tell


class Worker(Protocol):
    """A reader, or a runner."""

    @property
    def recorded(self) -> Spans | None: ...


class Inside:
    """Lanes, experts and workers of one engine. `pool` has counters; None: it has no workers of its own.

    Spans are those that programs record; of one that records none, each run is a span, told in parts while it runs.
    The engine's threads and its pulse may look at the same time.
    """

    def __init__(self, config: "ModelConfig | None" = None, pool: Any = None) -> None:
        num_layers, num_dense = (config.num_layers, config.num_dense_layers) if config else (0, 0)
        self._window = LaneWindow(num_layers, num_dense)
        self._heat = ExpertHeat(num_layers, num_dense, config.num_experts if config else 0)
        self._taken: dict[Spans, int] = {}  # of each program, how many were taken
        self._running_s: float | None = None  # since when programs run that record nothing: not yet told
        self._num_running = 0  # of those: prefill's and decode's may run at once
        self._pool = pool
        self._busy = perf_counter(), 0.0, 0.0  # when last looked, and the workers' seconds until then
        self._lock = Lock()

    @contextmanager
    def running(self, worker: Worker) -> Iterator[None]:
        """One run of `worker`."""
        with self._lock:
            if worker.recorded is not None:
                self._taken.setdefault(worker.recorded, 0)
            else:
                self._begin_pass()
        try:
            yield
        finally:
            if worker.recorded is None:
                with self._lock:
                    self._end_pass()

    def stepped(self, runner: Runner) -> None:
        """A decode step has ended: its experts are counted now and then."""
        now_s = perf_counter()
        if self._heat.is_due(now_s) and (chosen := runner.last_experts) is not None:
            with self._lock:
                self._heat.add(chosen, now_s)

    def events(self) -> list[Event]:
        """Lanes, and the experts' heat where any were counted."""
        with self._lock:
            now_s = perf_counter()
            self._tell_pass(now_s)
            for spans, count in list(self._taken.items()):
                new, self._taken[spans] = spans.added_from(count)
                self._window.add(new)
            heat = self._heat.event(now_s)
            return [self._window.event(now_s), *([heat] if heat else [])]

    def _begin_pass(self) -> None:
        if self._num_running == 0:
            self._running_s = perf_counter()
        self._num_running += 1

    def _end_pass(self) -> None:
        self._num_running -= 1
        if self._num_running == 0:
            self._tell_pass(perf_counter())
            self._running_s = None

    def _tell_pass(self, now_s: float) -> None:
        if self._running_s is not None:
            self._window.add([Span(HOST, "pass", -1, -1, self._running_s, now_s)])
            self._running_s = now_s

    def workers(self) -> Workers | None:
        """Since the last time."""
        if self._pool is None:
            return None
        with self._lock:
            counters, now_s = self._pool.counters(), perf_counter()
            urgent_s, bulk_s = (sum(busy[n] for busy in counters.busy_s) for n in (0, 1))
            (before_s, urgent_before_s, bulk_before_s), self._busy = self._busy, (now_s, urgent_s, bulk_s)
        elapsed_s = max(now_s - before_s, 1e-9)
        return Workers(
            num_workers=self._pool.num_workers,
            urgent=max(0.0, urgent_s - urgent_before_s) / elapsed_s,
            bulk=max(0.0, bulk_s - bulk_before_s) / elapsed_s,
            num_waits=counters.num_waits,
            wait_p50_us=counters.wait_p50_us,
            wait_p99_us=counters.wait_p99_us,
            wait_max_us=counters.wait_max_us,
            share=self._pool.share,
        )

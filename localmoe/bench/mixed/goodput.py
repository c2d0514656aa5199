"""The largest rate of requests that keeps to its targets: this scheduler's, and that of other ways to run both phases.

A request keeps to them when its first token and the tokens after it come within so many times what the same request
takes alone on all cores. Two classes of targets come in one trace; of each class nine of ten requests must keep to it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from localmoe.bench.mixed import rivals
from localmoe.bench.mixed.trace import LEAST_MADE, LONG_TOKENS, SHORT_TOKENS, Arrival, arrivals
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.instance import Ground, Instance
from localmoe.engine.job import Job, Targets

STEP = 1.25  # from one rate to the next
LOWEST = -9
CHUNKS = (32, 64, 128)
KEPT = 0.9  # of the requests
WAIT_S = 15.0  # after the last request has come
POLL_S = 0.005
BUDGET_S = 720.0  # no further run of the trace is begun after this


@dataclass(frozen=True, slots=True)
class Factors:
    """Targets as multiples of what a request takes alone."""

    ttft: float
    tpot: float


MIXED = (Factors(5.0, 3.0), Factors(3.0, 2.0))
LOOSE = (Factors(10.0, 5.0), Factors(10.0, 5.0))


@dataclass(frozen=True, slots=True)
class Alone:
    """What requests take on all cores: seconds to the first token by the prompt's length, and for a token."""

    ttft_s: Mapping[int, float]
    tpot_s: float

    def targets(self, arrival: Arrival, classes: Sequence[Factors]) -> Targets:
        """In seconds."""
        factors = classes[arrival.target]
        return Targets(factors.ttft * self.ttft_s[arrival.prompt], factors.tpot * self.tpot_s)


@dataclass(frozen=True, slots=True)
class System:
    """One way to run both phases."""

    name: str
    make: Callable[[], Instance]


def measure(ground: Ground, listener: Listener) -> Iterator[Row]:
    """Rows goodput-vs-exclusive, -chunked and -split, and the same at loose targets as goodput-loose-vs-..."""
    alone = _alone(ground, listener)
    systems = {
        "ours": [System(f"ours-{c}", lambda c=c: rivals.ours(ground, c)) for c in CHUNKS[-2:]],  # type: ignore[misc]
        "exclusive": [System("exclusive", lambda: rivals.exclusive(ground))],
        "chunked": [System(f"chunked-{c}", lambda c=c: rivals.chunked(ground, c)) for c in CHUNKS],  # type: ignore[misc]
        "split": [System("split", lambda: rivals.split(ground))],
    }
    end_s = time.monotonic() + BUDGET_S
    for prefix, classes in (("goodput", MIXED), ("goodput-loose", LOOSE)):
        if time.monotonic() >= end_s:
            listener.warn(f"{prefix} is left out: the time is up")
            break
        search = Search(alone, classes, listener, end_s)
        best = {name: search.best_of(group) for name, group in systems.items()}
        yield from _rows(prefix, best, str(ground.network.isa))


def _rows(prefix: str, best: Mapping[str, float], isa: str) -> Iterator[Row]:
    for name, rate in best.items():
        if name != "ours":
            row = Row("mixed", f"{prefix}-vs-{name}", "req_s", best["ours"], "req/s", isa=isa)
            yield compared(row, rate, f"{name}'s") if rate else row


def _alone(ground: Ground, listener: Listener) -> Alone:
    """Medians of a few, each without any other."""
    listener.progress("goodput: each request alone")
    with closing(Instance(ground)) as instance:
        ttfts = {
            n: [_answered(instance, n, LEAST_MADE, seed)[0] for seed in range(5)] for n in (SHORT_TOKENS, LONG_TOKENS)
        }
        tpots = [_answered(instance, SHORT_TOKENS, 48, 90 + seed)[1] for seed in range(4)]
    return Alone({n: median(seconds[1:]) for n, seconds in ttfts.items()}, median(tpots))


def _answered(instance: Instance, prompt: int, answer: int, seed: int) -> tuple[float, float]:
    return _times(instance.ask(prompt, answer, seed * 10_000 + prompt))


def _times(job: Job) -> tuple[float, float]:
    """Seconds to the first token and for each after it, once it has ended."""
    for _ in job.stream.events():
        pass
    ttft_s, tok_s = job.meter.ttft_s, job.meter.decode_tok_s
    never = float("inf")
    return never if ttft_s is None else ttft_s, 1 / tok_s if tok_s else never


class Search:
    """Finds rates."""

    def __init__(self, alone: Alone, classes: Sequence[Factors], listener: Listener, end_s: float) -> None:
        self._alone = alone
        self._classes = classes
        self._listener = listener
        self._end_s = end_s
        self._first = 0.35 / (0.8 * alone.ttft_s[SHORT_TOKENS] + 0.2 * alone.ttft_s[LONG_TOKENS] + 30 * alone.tpot_s)

    def best_of(self, systems: Sequence[System]) -> float:
        """The largest rate that one of `systems` keeps to, in steps of STEP; 0 where none of those tried is."""
        found = self._first_step(systems)
        for system in systems if found is not None else ():
            while found is not None and self._has_time() and self._keeps(system, found + 1):
                found += 1
        return 0.0 if found is None else self._rate(found)

    def _first_step(self, systems: Sequence[System]) -> int | None:
        """A step that one of `systems` keeps to, from the first one down: high rates are decided sooner."""
        for step in range(0, LOWEST, -2):
            if self._has_time() and any(self._keeps(system, step) for system in systems):
                return step
        return None

    def _has_time(self) -> bool:
        return time.monotonic() < self._end_s

    def _rate(self, step: int) -> float:
        return float(self._first * STEP**step)

    def _keeps(self, system: System, step: int) -> bool:
        rate = self._rate(step)
        self._listener.progress(f"goodput: {system.name} at {rate:.2f} requests a second")
        with closing(system.make()) as instance:
            _answered(instance, SHORT_TOKENS, 4, 77)  # its programs' memory is touched
            return Trial(instance, self._alone, self._classes).keeps(rate)


class Trial:
    """The trace, once, at one rate."""

    def __init__(self, instance: Instance, alone: Alone, classes: Sequence[Factors]) -> None:
        self._instance = instance
        self._alone = alone
        self._classes = classes
        self._jobs: list[tuple[Arrival, Job]] = []

    def keeps(self, rate: float) -> bool:
        """Whether KEPT of each class come within their targets; stops as soon as they cannot."""
        start_s = time.monotonic()
        coming = list(arrivals(rate))
        most = [int((1 - KEPT) * sum(a.target == n for a in coming)) for n in range(len(self._classes))]
        end_s = start_s + coming[-1].since_s + WAIT_S
        while (now_s := time.monotonic()) < end_s and (coming or self._is_busy()):
            while coming and start_s + coming[0].since_s <= now_s:
                self._ask(coming.pop(0))
            if any(late > allowed for late, allowed in zip(self._late(), most, strict=True)):
                break
            time.sleep(POLL_S)
        for _, job in self._jobs:
            job.stream.cancel()
        return not coming and all(late <= allowed for late, allowed in zip(self._late(), most, strict=True))

    def _ask(self, arrival: Arrival) -> None:
        targets = self._alone.targets(arrival, self._classes)
        job = self._instance.ask(arrival.prompt, arrival.answer, 1000 + len(self._jobs), targets)
        self._jobs.append((arrival, job))

    def _is_busy(self) -> bool:
        return any(not job.stream.ended for _, job in self._jobs)

    def _late(self) -> list[int]:
        """Of each class, those that have missed a target; those that have not ended may yet."""
        late = [0] * len(self._classes)
        for arrival, job in self._jobs:
            targets, ttft_s, tok_s = (
                self._alone.targets(arrival, self._classes),
                job.meter.ttft_s,
                job.meter.decode_tok_s,
            )
            waited_s = time.monotonic() - job.since_s if ttft_s is None else ttft_s
            is_slow = job.stream.ended and (not tok_s or 1 / tok_s > targets.tpot_s)
            late[arrival.target] += waited_s > targets.ttft_s or is_slow
        return late

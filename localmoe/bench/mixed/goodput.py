"""The largest rate of requests that keeps to its targets: this scheduler's, and that of other ways to run both phases.

A request keeps to them when its first token and the tokens after it come within so many times what the same request
takes alone on all cores. Two classes of targets come in one trace; of each class nine of ten requests must keep to it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median

from localmoe.bench.mixed import rivals
from localmoe.bench.mixed.trace import LEAST_MADE, LONG_TOKENS, SHORT_TOKENS, Arrival, arrivals
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.instance import Ground, Instance
from localmoe.engine.job import Job, Targets

STEP = 1.25  # from one rate to the next
HIGHEST, LOWEST = 8, -8
NEAR, FAR = 2, 4  # steps below ours: a rival that keeps to none down to the far one does less than 0.41 of it
CHUNKS = (32, 64, 128)
KEPT = 0.9  # of the requests
WAIT_S = 15.0  # after the last request has come
POLL_S = 0.005
BUDGET_S = 720.0  # no further run of the trace is begun after this
LOOSE_S = 240.0  # of it, kept for the loose targets


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


@dataclass(frozen=True, slots=True)
class Found:
    """A rate that `system` keeps to, as a step of Search's."""

    system: System
    step: int


def measure(ground: Ground, listener: Listener) -> Iterator[Row]:
    """Rows goodput-vs-exclusive, -chunked and -split, and the same at loose targets as goodput-loose-vs-...

    The search at loose targets goes on where the one at the others ended: what keeps to those keeps to these.
    """
    alone = _alone(ground, listener)
    systems = {
        "ours": [System("ours", lambda: rivals.ours(ground))],
        "exclusive": [System("exclusive", lambda: rivals.exclusive(ground))],
        "split": [System("split", lambda: rivals.split(ground))],
        "chunked": [System(f"chunked-{c}", lambda c=c: rivals.chunked(ground, c)) for c in CHUNKS],  # type: ignore[misc]
    }
    end_s, isa = time.monotonic() + BUDGET_S, str(ground.network.isa)
    search = Search(alone, MIXED, listener, end_s - LOOSE_S)
    best = _found(
        search, "goodput", {name: partial(search.best_of, group) for name, group in systems.items()}, listener
    )
    yield from _rows("goodput", search, best, isa)
    search = Search(alone, LOOSE, listener, end_s)
    climbs = {
        name: partial(search.climb, found.system, found) if found else partial(search.best_of, systems[name])
        for name, found in best.items()
    }
    yield from _rows("goodput-loose", search, _found(search, "goodput-loose", climbs, listener), isa)


def _found(
    search: "Search", prefix: str, finds: Mapping[str, Callable[[], Found | None]], listener: Listener
) -> dict[str, Found | None]:
    """What each finds. One that the end of the time cuts short has found too little, and is left out."""
    best: dict[str, Found | None] = {}
    for name, find in finds.items():
        found = find()
        if search.is_cut:
            listener.warn(f"{prefix} of {name} is left out: the time is up")
            break
        best[name] = found
        if name == "ours" and found:
            search.look_below(found)
    return best


def _rows(prefix: str, search: "Search", best: Mapping[str, Found | None], isa: str) -> Iterator[Row]:
    """Beside the rates of the others; of one that keeps to none, beside the lowest: its own is below."""
    ours, lowest = best.get("ours"), search.lowest
    for name, found in best.items():
        if ours and name != "ours":
            row = Row("mixed", f"{prefix}-vs-{name}", "req_s", search.rate(ours.step), "req/s", isa=isa)
            against = f"{name}'s" if found else f"more than {name}'s"
            yield compared(row, search.rate(found.step if found else lowest), against)


def _alone(ground: Ground, listener: Listener) -> Alone:
    """Medians of a few, each without any other."""
    listener.progress("goodput: each request alone")
    with closing(Instance(ground)) as instance:
        ttfts = {
            n: [_answered(instance, n, LEAST_MADE, seed)[0] for seed in range(9)] for n in (SHORT_TOKENS, LONG_TOKENS)
        }
        tpots = [_answered(instance, SHORT_TOKENS, 48, 90 + seed)[1] for seed in range(8)]
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
        self.is_cut = False  # by the end of the time
        self._highest, self.lowest = HIGHEST, LOWEST  # of the steps that are tried
        self._first = 0.35 / (0.8 * alone.ttft_s[SHORT_TOKENS] + 0.2 * alone.ttft_s[LONG_TOKENS] + 30 * alone.tpot_s)

    def best_of(self, systems: Sequence[System]) -> Found | None:
        """The largest rate that one of `systems` keeps to, in steps of STEP; None where none of those tried is."""
        found = self._first_found(systems)
        for system in systems:
            found = found and self.climb(system, found)
        return found

    def look_below(self, ours: Found) -> None:
        """Rivals are looked for from a little below our rate, not from the highest: few do better."""
        self.lowest = max(LOWEST, ours.step - FAR)
        self._highest = max(self.lowest, ours.step - NEAR)

    def climb(self, system: System, found: Found) -> Found:
        """The largest rate from `found` on that `system` keeps to, or `found` where it does no better."""
        while self._has_time() and self._keeps(system, found.step + 1):
            found = Found(system, found.step + 1)
        return found

    def rate(self, step: int) -> float:
        """Requests a second."""
        return float(self._first * STEP**step)

    def _first_found(self, systems: Sequence[System]) -> Found | None:
        """Down from the rate of those before: a rate that is too high is decided soon."""
        for step in range(self._highest, self.lowest - 1, -2):
            for system in systems:
                if self._has_time() and self._keeps(system, step):
                    return Found(system, step)
        return None

    def _has_time(self) -> bool:
        self.is_cut = time.monotonic() >= self._end_s
        return not self.is_cut

    def _keeps(self, system: System, step: int) -> bool:
        rate = self.rate(step)
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
        """Of each class, those that have missed a target, or are sure to."""
        late = [0] * len(self._classes)
        for arrival, job in self._jobs:
            targets = self._alone.targets(arrival, self._classes)
            late[arrival.target] += _is_late(job, targets, arrival.answer)
        return late


def _is_late(job: Job, targets: Targets, answer: int) -> bool:
    """Whether `job` missed a target, or will whatever comes: its answer has `answer` tokens."""
    ttft_s, tok_s, gone_s = job.meter.ttft_s, job.meter.decode_tok_s, time.monotonic() - job.since_s
    if ttft_s is None:
        return gone_s > targets.ttft_s
    if job.stream.ended:
        return ttft_s > targets.ttft_s or not tok_s or 1 / tok_s > targets.tpot_s
    return ttft_s > targets.ttft_s or gone_s - ttft_s > (answer - 1) * targets.tpot_s

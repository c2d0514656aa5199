"""The largest rate of requests that keeps to its targets: this scheduler's, and that of other ways to run both phases.

A request keeps to them when its first token and the tokens after it come within so many times what the same request
takes alone on all cores, measured just before. Two classes of targets come in one trace; of each class nine of ten
requests must keep to it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

from localmoe.bench.mixed import rivals
from localmoe.bench.mixed.trace import LEAST_MADE, LONG_SHARE, LONG_TOKENS, MOST_MADE, SHORT_TOKENS, Arrival, arrivals
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.instance import Ground, Instance
from localmoe.engine.job import Job, Targets

STEP = 1.25  # from one rate to the next
HIGHEST, LOWEST = 8, -8
NEAR, FAR = 2, 4  # steps below ours: a rival that keeps to none down to the far one does less than 0.41 of it
UNTRIED = 99  # a step that no search comes to
CHUNKS = (32, 64, 128)
KEPT = 0.9  # of the requests
WAIT_S = 15.0  # after the last request has come
POLL_S = 0.005
BUDGET_S = 720.0  # no further run of the trace is begun after this
LOOSE_S = 180.0  # of it, kept for the loose targets


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

    @property
    def of_a_request_s(self) -> float:
        """On average."""
        long = LONG_SHARE * self.ttft_s[LONG_TOKENS]
        return (1 - LONG_SHARE) * self.ttft_s[SHORT_TOKENS] + long + (LEAST_MADE + MOST_MADE) / 2 * self.tpot_s

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


@dataclass(frozen=True, slots=True)
class Result:
    """The largest rate that was found, if any was, and a step at which none keeps to its targets any more."""

    found: Found | None
    above: int


def measure(ground: Ground, listener: Listener) -> Iterator[Row]:
    """Rows goodput-vs-exclusive, -chunked and -split, and the same at loose targets as goodput-loose-vs-...

    The search at loose targets goes on where the one at the others ended: what keeps to those keeps to these.
    """
    systems = {
        "ours": [System("ours", lambda: rivals.ours(ground))],
        "exclusive": [System("exclusive", lambda: rivals.exclusive(ground))],
        "split": [System("split", lambda: rivals.split(ground))],
        "chunked": [System(f"chunked-{c}", lambda c=c: rivals.chunked(ground, c)) for c in CHUNKS],  # type: ignore[misc]
    }
    end_s, isa = time.monotonic() + BUDGET_S, str(ground.network.isa)
    listener.progress("goodput: each request alone")
    alone = partial(_alone, ground, count())
    first = 0.35 / alone().of_a_request_s
    search = Search(alone, MIXED, listener, first, end_s - LOOSE_S)
    results = _search(search, "goodput", {name: partial(search.best_of, group) for name, group in systems.items()})
    yield from _rows("goodput", search, results, isa)
    search = Search(alone, LOOSE, listener, first, end_s)
    finds = {
        name: partial(search.climb_from, result.found) if result.found else partial(search.best_of, systems[name])
        for name, result in results.items()
    }
    yield from _rows("goodput-loose", search, _search(search, "goodput-loose", finds), isa)


def _search(search: "Search", prefix: str, finds: Mapping[str, Callable[[], Result | None]]) -> dict[str, Result]:
    """What each finds until the time is up."""
    results: dict[str, Result] = {}
    for name, find in finds.items():
        if not (result := find()):
            search.listener.warn(f"{prefix} of {name} is left out: the time is up")
            break
        results[name] = result
        if name == "ours" and result.found:
            search.look_below(result.found)
    return results


def _rows(prefix: str, search: "Search", results: Mapping[str, Result], isa: str) -> Iterator[Row]:
    """Beside the rates of the others; of one whose own is not known, beside one that is too high for it."""
    ours = results["ours"].found if "ours" in results else None
    for name, result in results.items():
        if ours and name != "ours":
            row = Row("mixed", f"{prefix}-vs-{name}", "req_s", search.rate(ours.step), "req/s", isa=isa)
            is_known = result.found is not None and result.found.step + 1 == result.above
            against = f"{name}'s" if is_known else f"more than {name}'s"
            yield compared(row, search.rate(result.above - is_known), against)


def _alone(ground: Ground, seeds: Iterator[int]) -> Alone:
    """Each without any other: what the machine does at this moment, as others may share its cores.

    No prompt comes twice, which would be found in the cache; and none stays there, where those of the trace need room.
    """
    with closing(Instance(ground)) as instance:
        _answered(instance, SHORT_TOKENS, 4, next(seeds))  # its programs' memory is touched
        short = median(_answered(instance, SHORT_TOKENS, LEAST_MADE, next(seeds))[0] for _ in range(3))
        long, _ = _answered(instance, LONG_TOKENS, LEAST_MADE, next(seeds))
        _, tpot = _answered(instance, SHORT_TOKENS, MOST_MADE, next(seeds))
    return Alone({SHORT_TOKENS: short, LONG_TOKENS: long}, tpot)


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

    def __init__(
        self, alone: Callable[[], Alone], classes: Sequence[Factors], listener: Listener, first: float, end_s: float
    ) -> None:
        self.listener = listener
        self._alone = alone
        self._classes = classes
        self._end_s = end_s
        self._highest, self._lowest = HIGHEST, LOWEST  # of the steps that are tried
        self._first = first

    def best_of(self, systems: Sequence[System]) -> Result | None:
        """The largest rate that one of `systems` keeps to, in steps of STEP; None where the time was too short to tell.

        Down from the highest by two: a rate that is too high is decided soon.
        """
        above = UNTRIED
        for step in range(self._highest, self._lowest - 1, -2):
            for system in systems:
                if not self._has_time():
                    return _result(None, above)
                if self._keeps(system, step):
                    return self._climb(systems, Found(system, step), above, (1,))
            above = step
        return Result(None, above)

    def look_below(self, ours: Found) -> None:
        """Rivals are looked for from a little below our rate, not from the highest: few do better."""
        self._lowest = max(LOWEST, ours.step - FAR)
        self._highest = max(self._lowest, ours.step - NEAR)

    def climb_from(self, found: Found) -> Result | None:
        """The largest rate from `found` on that its system keeps to; None where the time was too short to tell."""
        return self._climb([found.system], found, UNTRIED, (4, 2, 1))

    def rate(self, step: int) -> float:
        """Requests a second; `first` at step 0."""
        return float(self._first * STEP**step)

    def _climb(self, systems: Sequence[System], found: Found, above: int, strides: Sequence[int]) -> Result | None:
        """One after another goes on from `found`, to below the step `above` at which all of them fail."""
        for system in systems:
            fails = above
            for stride in strides:
                while found.step + stride < fails:
                    if not self._has_time():
                        return _result(found, fails if system is systems[-1] else above)
                    if self._keeps(system, found.step + stride):
                        found = Found(system, found.step + stride)
                    else:
                        fails = found.step + stride
        return Result(found, found.step + 1)

    def _has_time(self) -> bool:
        return time.monotonic() < self._end_s

    def _keeps(self, system: System, step: int) -> bool:
        rate = self.rate(step)
        self.listener.progress(f"goodput: {system.name} at {rate:.2f} requests a second")
        alone = self._alone()
        with closing(system.make()) as instance:
            _answered(instance, SHORT_TOKENS, 4, 77)  # its programs' memory is touched
            return Trial(instance, alone, self._classes).keeps(rate)


def _result(found: Found | None, above: int) -> Result | None:
    """Of a search that the end of the time cuts short."""
    return None if above == UNTRIED else Result(found, above)


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

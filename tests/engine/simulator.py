"""A machine that is only a clock: it does what the scheduler says, for thousands of requests in seconds.

Both phases advance at once, each at its share's pace, or in turns. Pages are counted as the engine counts them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localmoe.engine.scheduler import (
    Action,
    Active,
    Admit,
    Decode,
    Limits,
    Prefill,
    State,
    Waiting,
    next_lead,
    next_pass,
    next_read,
    next_step,
    next_turn,
)

PAGE = 64
FOREVER = float("inf")


@dataclass
class Asked:
    """A request, and what became of it."""

    number: int
    since_s: float
    prompt: int
    answer: int
    cancel_s: float = FOREVER
    fails: bool = False  # its first run does
    target_s: float = 30.0
    read: int = 0  # tokens of prompt and answer in the cache
    made: int = 0
    holds: int = 0  # pages
    begun_s: float | None = None  # reading
    first_s: float | None = None
    ended_s: float | None = None
    reason: str = ""
    num_evicted: int = 0
    gave_way: int = 0  # while it was read
    is_running: bool = False

    @property
    def num_tokens(self) -> int:
        return self.prompt + self.made

    @property
    def unread(self) -> int:
        return max(0, self.num_tokens - self.read) if self.made == 0 or self.read < self.num_tokens - 1 else 0


@dataclass(frozen=True)
class Pace:
    """Seconds of the whole machine."""

    read_tok_s: float = 200.0
    chunk_s: float = 0.05  # beside the tokens
    step_s: float = 0.02
    stream_s: float = 0.004  # of each answer in a step
    share: float = 0.5  # decode's, while both run

    def read_s(self, count: int) -> float:
        return self.chunk_s + count / self.read_tok_s

    def decode_s(self, batch: int) -> float:
        return self.step_s + self.stream_s * batch


@dataclass
class Doing:
    """What a phase is at: seconds of the whole machine that are left."""

    action: Action
    jobs: list[Asked]
    left_s: float
    whole_s: float


@dataclass
class Simulator:
    """Runs `requests` to their ends. `log` has (time, action, request) of every prefill run's begin."""

    requests: Sequence[Asked]
    limits: Limits
    num_pages: int
    pace: Pace = field(default_factory=Pace)
    together: bool = True
    now_s: float = 0.0
    lead_s: float = 0.0
    line: list[Asked] = field(default_factory=list)
    active: list[Asked] = field(default_factory=list)
    log: list[tuple[float, Asked, int]] = field(default_factory=list)
    most_pages: int = 0
    most_batch: int = 0
    most_begun: int = 0

    def run(self) -> None:
        self._coming = sorted(self.requests, key=lambda r: r.since_s)
        self._doing: dict[str, Doing] = {}
        policies: dict[str, Callable[[State, Limits], Action]] = (
            {"prefill": next_read, "decode": next_step} if self.together else {"engine": next_turn}
        )
        if self.limits.passing:
            policies["passing"] = next_pass
        while self._coming or self.line or self.active:
            self._arrive()
            changed = True
            while changed:  # one phase's admission or eviction may be the other's work
                changed = any([self._choose(name, policy) for name, policy in policies.items()])
            self._advance()

    def _arrive(self) -> None:
        while self._coming and self._coming[0].since_s <= self.now_s:
            self.line.append(self._coming.pop(0))
        for request in [*self.line, *self.active]:
            if request.cancel_s <= self.now_s and not request.is_running:
                self._end(request, "cancelled")

    def _choose(self, name: str, policy: Callable[[State, Limits], Action]) -> bool:
        """Whether something was begun or changed."""
        if name in self._doing:
            return False
        action = policy(self._state(), self.limits)
        if isinstance(action, Admit):
            request = self.line.pop(action.index)
            self.active.append(request)
            self._take(request, request.num_tokens)
            return True
        if isinstance(action, Prefill):
            self._begin(name, action, [self.active[action.index]], self.pace.read_s(action.count))
            return True
        if isinstance(action, Decode):
            if jobs := self._with_room():
                self._begin(name, action, jobs, self.pace.decode_s(len(jobs)))
            return bool(jobs)
        return False

    def _begin(self, name: str, action: Action, jobs: list[Asked], seconds: float) -> None:
        if isinstance(action, Prefill):
            job = jobs[0]
            if self.log and self.log[-1][1] is not job and self.log[-1][1].unread and self.log[-1][1] in self.active:
                self.log[-1][1].gave_way += 1
            job.begun_s = self.now_s if job.begun_s is None else job.begun_s
            self.log.append((self.now_s, job, action.count))
        for job in jobs:
            job.is_running = True
        self._doing[name] = Doing(action, jobs, seconds, seconds)

    def _advance(self) -> None:
        """To the next end of a run, or arrival, or cancel."""
        speeds = {name: self._speed(name) for name in self._doing}
        ends = [self.now_s + doing.left_s / speeds[name] for name, doing in self._doing.items() if speeds[name]]
        events = [r.cancel_s for r in [*self.line, *self.active] if r.cancel_s > self.now_s and not r.is_running]
        coming = [self._coming[0].since_s] if self._coming else []
        then_s = min([*ends, *events, *coming], default=self.now_s)
        assert then_s > self.now_s or ends or not (self.line or self.active), "nothing happens any more"
        for name, doing in list(self._doing.items()):
            doing.left_s -= (then_s - self.now_s) * speeds[name]
        self.now_s = then_s
        for name, doing in list(self._doing.items()):
            if doing.left_s <= 1e-9:
                del self._doing[name]
                self._finish(doing)

    def _speed(self, name: str) -> float:
        reading = self._doing.keys() - {"decode"}
        if name == "prefill" and "passing" in reading:
            return 0.0
        if name == "decode":
            return self.pace.share if reading else 1.0
        return 1.0 - self.pace.share if "decode" in self._doing else 1.0

    def _finish(self, doing: Doing) -> None:
        for job in doing.jobs:
            job.is_running = False
            if job.fails:
                self._end(job, "failed")
                continue
            job.read += doing.action.count if isinstance(doing.action, Prefill) else 1
            if not job.unread:
                self._made(job)
        if not self.together:
            self.lead_s = next_lead(self.lead_s, doing.action, doing.whole_s, self._actives())

    def _made(self, job: Asked) -> None:
        job.made += 1
        job.first_s = self.now_s if job.first_s is None else job.first_s
        if job.made == job.answer:
            self._end(job, "length")

    def _end(self, job: Asked, reason: str) -> None:
        (self.line if job in self.line else self.active).remove(job)
        job.ended_s, job.reason, job.holds = self.now_s, reason, 0

    def _state(self) -> State:
        waiting = [
            Waiting(f"{r.number}", -(-(r.num_tokens + 1) // PAGE), r.num_tokens - r.read, r.since_s, r.target_s)
            for r in self.line
        ]
        free = self.num_pages - sum(r.holds for r in self.active)
        return State(waiting, self._actives(), free, self.lead_s, self.pace.read_tok_s)

    def _actives(self) -> list[Active]:
        return [Active(f"{r.number}", r.unread, r.since_s, r.target_s, r.prompt, r.is_running) for r in self.active]

    def _with_room(self) -> list[Asked]:
        """As Roster.make_room: the youngest give up their pages; one that is being read gives way after its run."""
        for job in [r for r in self.active if not r.unread]:
            while job in self.active and not self._take(job, job.num_tokens + 1):
                youngest = self.active[-1]
                if youngest.is_running:
                    break
                self._evict(youngest)
        self.most_batch = max(self.most_batch, len(self.active))
        ready = [r for r in self.active if not r.unread and r.holds * PAGE >= r.num_tokens + 1]
        return ready

    def _evict(self, job: Asked) -> None:
        self.active.remove(job)
        job.read, job.holds, job.num_evicted = 0, 0, job.num_evicted + 1
        self.line.insert(0, job)

    def _take(self, job: Asked, num_tokens: int) -> bool:
        needed = -(-num_tokens // PAGE)
        others = sum(r.holds for r in self.active if r is not job)
        if others + needed > self.num_pages:
            return False
        job.holds = max(job.holds, needed)
        self.most_pages = max(self.most_pages, others + job.holds)
        self.most_begun = max(self.most_begun, sum(bool(r.unread and r.read) for r in self.active))
        return True


def trace(seed: int, count: int, rate: float, **changes) -> list[Asked]:
    """Poisson arrivals of mostly short prompts and some long ones."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / rate, count))
    found = []
    for n, since_s in enumerate(times):
        is_long = random.random() < 0.1
        prompt = int(random.integers(1500, 6000) if is_long else random.integers(5, 300))
        found.append(Asked(n, float(since_s), prompt, int(random.integers(1, 20)), **changes))
    return found

"""Who waits, who is answered, and the pages that they hold: what both phases share.

`changed` guards all of it. It is held while something is decided or noted, never while the network runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Condition

from localmoe.engine.inside import Inside
from localmoe.engine.job import Job
from localmoe.engine.line import Line
from localmoe.engine.scheduler import Active, State, Waiting, due_s
from localmoe.engine.session import Sessions
from localmoe.errors import OutOfMemoryError
from localmoe.events import FinishReason, Stats
from localmoe.kernels.ops import PAGE_TOKENS, CancelFlag
from localmoe.model.cache import LatentCache


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of the network: who is in it, and what aborts it."""

    jobs: Sequence[Job]
    flag: CancelFlag
    num_done: Callable[[], float] = lambda: 0.0  # of the tokens that it reads


class Roster:
    """Every request from its first moment to its last. Methods expect `changed` to be held."""

    def __init__(self, cache: LatentCache, context_limit: int, inside: Inside) -> None:
        self.changed = Condition()
        self.context_limit = context_limit
        self.inside = inside
        self.sessions = Sessions(cache)
        self.line = Line()
        self.active: list[Job] = []  # those that hold a session, oldest first
        self.running: list[Run] = []  # of each thread one at most
        self.closed = False
        self.known_tok_s: float | None = None  # the last rate of reading that was measured

    @property
    def is_done(self) -> bool:
        """Closed, with nobody left."""
        return self.closed and not self.active and not len(self.line)

    def wake(self) -> None:
        """Something has changed that others may wait for."""
        self.changed.notify_all()

    def state(self, lead_s: float = 0.0) -> State:
        """As the policy looks at it. Indices of `waiting` are those of the line."""
        if len(self.line) > 1:
            self.line.sort(lambda job: due_s(self._waiting(job), self.known_tok_s))
        waiting = [self._waiting(job) for job in self.line.jobs()]
        free_pages = self.sessions.num_available() if waiting else 0
        return State(waiting, [self._active(job) for job in self.active], free_pages, lead_s, self.known_tok_s)

    def join(self, job: Job) -> None:
        """Puts `job` into the line."""
        job.num_new = max(1, len(job.prompt) - self.sessions.num_known(job.request.session, job.prompt))
        self.line.join(job)

    def tell_positions(self, num_leaving: int = 0) -> None:
        """Tells those who wait; the first `num_leaving` are about to be read."""
        num_unread = sum(job.num_unread for job in self.active if job.reading)
        self.line.tell_positions(num_leaving, num_unread, self.known_tok_s)

    def admit(self, job: Job) -> None:
        """Gives `job` its session and pages; it fails where there are none."""
        if not self.line.leave(job):  # cancelled meanwhile
            return
        self.active.append(job)
        try:
            self._open(job)
        except Exception as error:  # noqa: BLE001 - this request fails, the engine goes on
            self.fail(job, error)
        else:
            job.progress(self.known_tok_s)
        self.wake()

    def start(self, jobs: Sequence[Job], flag: CancelFlag, num_done: Callable[[], float] = lambda: 0.0) -> Run:
        """A run of `jobs` begins."""
        flag.clear()
        run = Run(jobs, flag, num_done)
        for job in jobs:
            job.runs = True
        self.running.append(run)
        return run

    def stop(self, run: Run, *, is_step: bool = False) -> None:
        """It is over, and what is known of it was noted. A step's end wakes nobody where nothing is to be read."""
        for job in run.jobs:
            job.runs = False
        self.running.remove(run)
        if not is_step or self.closed or len(self.line) or any(job.reading for job in self.active):
            self.wake()

    def abort(self, job: Job) -> None:
        """Sets the flag of the run that `job` is in."""
        for run in self.running:
            if job in run.jobs:
                run.flag.set()

    def end_cancelled(self) -> None:
        """Ends those that were cancelled, or all once it is closed; of those that run, their run comes first."""
        for job in [*self.active, *self.line.jobs()]:
            ends = (self.closed or job.cancelled.is_set()) and not job.runs
            if ends and (job.session or self.line.leave(job)):
                self.end(job, "cancelled")

    def make_room(self, job: Job, num_tokens: int) -> bool:
        """Pages for so many tokens of `job`; the youngest give up theirs, if need be `job` itself.

        False when it has none this time: it is in the line again, or whoever has the pages is being read and gives way.
        """
        while job.session and not self.sessions.reserve(job.session, num_tokens):
            youngest = self.active[-1]
            if youngest.runs:
                youngest.gives_way = True
                self.abort(youngest)
                return False
            self.return_to_line(youngest)
        return job.session is not None

    def return_to_line(self, job: Job) -> None:
        """Takes the pages of `job`, which begins again in the first place."""
        job.gives_way = False
        self.active.remove(job)
        job.stop()
        job.num_new = job.num_tokens
        self.line.return_first(job)
        self.wake()

    def end(self, job: Job, reason: FinishReason) -> None:
        """The last text and figures of `job`."""
        stats = self.stats(job)
        if job.session:
            job.stream.put(*self.inside.events())
        self._let_go(job)
        job.finish(reason, stats)

    def fail(self, job: Job, error: Exception) -> None:
        """Ends `job` with what went wrong. What its session holds is in doubt."""
        if job.session:
            job.session.rewind(0)
        self._let_go(job)
        job.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Ends all that do not run, if only those in the line are left them."""
        idle = [job for job in self.active if not job.runs]
        for job in idle or self.line.jobs():
            self.fail(job, error)

    def stats(self, job: Job) -> Stats:
        """Figures of `job` as of now."""
        stats = job.stats(self.context_limit, len(self.active), len(self.line))
        return replace(stats, cache_used_bytes=self.sessions.used_bytes, workers=self.inside.workers())

    def _open(self, job: Job) -> None:
        session = self.sessions.open(job.request.session, job.ids)
        job.start(session)
        job.num_new = job.num_unread
        self.inside.workers()  # they are counted from here
        if not self.sessions.reserve(session, job.num_tokens):
            raise OutOfMemoryError(
                "the latent cache has no room for this prompt", "close other chats, or wait for them"
            )

    def _let_go(self, job: Job) -> None:
        self.line.leave(job)
        if job in self.active:
            self.active.remove(job)
        job.stop()
        self.wake()

    def _waiting(self, job: Job) -> Waiting:
        num_pages = -(-min(job.num_tokens + 1, self.context_limit) // PAGE_TOKENS)
        return Waiting(job.request.session, num_pages, job.num_new, job.since_s, job.targets.ttft_s)

    def _active(self, job: Job) -> Active:
        unread = job.num_unread if job.reading else 0
        if unread and job.runs:
            done = next(run.num_done() for run in self.running if job in run.jobs)
            unread = max(1, unread - int(done))
        return Active(job.request.session, unread, job.since_s, job.targets.ttft_s, job.num_new, job.runs)

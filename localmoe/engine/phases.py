"""The two phases at work: each begins a run under the roster's lock, runs it without, and notes what came of it."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.runner import Runner
from localmoe.engine.inside import Worker
from localmoe.engine.job import Job
from localmoe.engine.metrics import Every
from localmoe.engine.pulse import Pulse
from localmoe.engine.roster import Roster, Run
from localmoe.engine.scheduler import needed_share
from localmoe.engine.shares import ShareControl
from localmoe.errors import CancelledError
from localmoe.events import Event
from localmoe.prefill.reader import Reader

KNOWN_FROM_TOKENS = 32  # a shorter prompt's rate says little about a longer one's

Begun = tuple[Run, Callable[[], None]]  # what is to be called without the roster's lock


class Prefilling:
    """Prompts, a chunk at a time; `passed` None, or the reader whose run goes on meanwhile. `close` ends its beat."""

    def __init__(self, roster: Roster, reader: Reader, passed: Reader | None = None) -> None:
        self._roster = roster
        self._reader = reader
        self._passed = passed
        self._pulse = Pulse()
        self._last: Job | None = None
        self._looks = Every()  # into the engine while a prompt is read

    def begin(self, job: Job, count: int) -> Begun:
        """The next `count` tokens of `job`. The roster's lock is held."""
        run = self._roster.start([job], self._reader.flag, lambda: count * self._reader.progress)
        self._roster.wake()  # whoever may pass it
        if job is not self._last:
            job.meter.resumed()
        self._last = job
        assert job.session is not None
        start, table = job.session.num_tokens, job.session.table
        ids = job.ids[start : start + count]
        return run, lambda: self._read(run, job, ids, lambda: self._reader.read(ids, table, start))

    def close(self) -> None:
        """Nothing is read any more."""
        self._pulse.close()

    def _read(self, run: Run, job: Job, ids: Sequence[int], call: Callable[[], NDArray[np.float32]]) -> None:
        start_s = time.monotonic()
        with self._pulse.beating(lambda: self._tell_chunk(job, len(ids))):
            logits = run_native(self._roster, run, self._reader, call)
        if logits is not None:
            with self._roster.changed:
                job.has_read(ids)
                job.gives_way = False
            job.progress(self._roster.known_tok_s)
            self._tell_inside(job)
            if not job.reading:
                self._learn_rate(job)
                choose(self._roster, job, logits)
        with self._roster.changed:
            self._roster.stop(run)
            if self._passed and self._passed.gives_way:
                for waiting in (j for r in self._roster.running for j in r.jobs if j.reading):
                    waiting.meter.gave_way(time.monotonic() - start_s)
            if job.gives_way and job.session:
                self._roster.return_to_line(job)

    def _learn_rate(self, job: Job) -> None:
        if job.meter.num_read >= KNOWN_FROM_TOKENS and job.meter.prefill_tok_s:
            self._roster.known_tok_s = job.meter.prefill_tok_s

    def _tell_chunk(self, job: Job, num_tokens: int) -> None:
        if done := self._reader.progress:
            job.progress(self._roster.known_tok_s, done * num_tokens)
        self._tell_inside(job)

    def _tell_inside(self, job: Job) -> None:
        if self._looks.is_due():
            job.stream.put(*self._roster.inside.events())


class Decoding:
    """Answers, a token of each at a time; `shares` says how much of the workers a step gets beside prefill."""

    def __init__(self, roster: Roster, runner: Runner, shares: ShareControl | None) -> None:
        self._roster = roster
        self._runner = runner
        self._shares = shares

    def begin(self) -> Begun | None:
        """A step for all that decode and have room for one token more. The roster's lock is held."""
        jobs = self.with_room()
        if not jobs:
            return None
        run = self._roster.start(jobs, self._runner.flag)
        sessions = [job.session for job in jobs if job.session]
        tokens = [job.output[-1] for job in jobs]
        tables, starts = [s.table for s in sessions], [s.num_tokens for s in sessions]
        needed = needed_share(self._roster.state(), time.monotonic()) if self._shares else 0.0
        return run, lambda: self._step(run, needed, lambda: self._runner.step(tokens, tables, starts))

    def with_room(self) -> list[Job]:
        """Oldest first, so that the youngest give up their pages for them."""
        for job in list(self._roster.active):
            if job.session and not job.reading and not job.runs:
                self._roster.make_room(job, job.session.num_tokens + 1)
        decoding = (job for job in self._roster.active if not job.reading and not job.runs)
        return [job for job in decoding if job.session and job.session.table.length > job.session.num_tokens]

    def _step(self, run: Run, needed: float, call: Callable[[], NDArray[np.float32]]) -> None:
        rows = self._shared(run, needed, call)
        if rows is not None:
            self._roster.inside.stepped(self._runner)
            with self._roster.changed:
                for job in run.jobs:
                    job.has_read(job.output[-1:])
            for job, row in zip(run.jobs, rows, strict=True):
                choose(self._roster, job, row)
        with self._roster.changed:
            self._roster.stop(run, is_step=True)

    def _shared(self, run: Run, needed: float, call: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32] | None:
        if self._shares:
            self._shares.begin([_target(job) for job in run.jobs], needed)
        start_s = time.monotonic()
        rows = run_native(self._roster, run, self._runner, call)
        if self._shares and rows is not None:
            self._shares.end(len(run.jobs), time.monotonic() - start_s)
        return rows


def _target(job: Job) -> tuple[float, float]:
    """Seconds for each token of `job`, and how far it is ahead of that."""
    target_s = job.targets.tpot_s
    return target_s, job.meter.ahead_s(target_s)


def run_native(
    roster: Roster, run: Run, worker: Worker, call: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32] | None:
    """What a native `call` returns, or None: it was aborted for one of the run's jobs, or failed for all."""
    try:
        with roster.inside.running(worker):
            return call()
    except CancelledError:
        return None
    except Exception as error:  # noqa: BLE001 - the requests fail, the engine goes on
        with roster.changed:
            for job in run.jobs:
                roster.fail(job, error)
        return None


def choose(roster: Roster, job: Job, logits: NDArray[np.float32]) -> None:
    """The next token of `job`, which may be its last."""
    try:
        job.choose(logits)
    except Exception as error:  # noqa: BLE001 - this request fails, those beside it go on
        with roster.changed:
            roster.fail(job, error)
        return
    with roster.changed:
        if reason := job.reason_to_stop(roster.context_limit):
            roster.end(job, reason)
        elif job.meter.is_due():
            told: list[Event] = [*roster.inside.events(), roster.stats(job)]
            job.stream.put(*told)

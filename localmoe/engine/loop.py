"""The engine's thread: does what the policy says, and tells each request how it is doing."""

import time
from collections.abc import Callable, Sequence
from threading import Condition, Thread

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.runner import Runner
from localmoe.engine.job import Job
from localmoe.engine.line import Line
from localmoe.engine.pulse import Pulse
from localmoe.engine.scheduler import (
    Action,
    Active,
    Admit,
    Decode,
    Prefill,
    State,
    Waiting,
    next_action,
    next_lead,
)
from localmoe.engine.session import Session, Sessions
from localmoe.errors import CancelledError, LocalmoeError, OutOfMemoryError
from localmoe.events import FinishReason
from localmoe.kernels.ops import PAGE_TOKENS, CancelFlag
from localmoe.model.cache import LatentCache
from localmoe.prefill.reader import Reader

KNOWN_FROM_TOKENS = 32  # a shorter prompt's rate says little about a longer one's


class Loop:
    """Answers jobs until it is closed. `submit`, `cancel` and `close` may be called from any thread."""

    def __init__(self, cache: LatentCache, reader: Reader, runner: Runner, context_limit: int) -> None:
        assert context_limit <= cache.num_pages * PAGE_TOKENS, "one session alone must always fit"
        self.context_limit = context_limit
        self._sessions = Sessions(cache)
        self._reader = reader
        self._runner = runner
        self._line = Line()
        self._active: list[Job] = []  # those that hold a session, oldest first; at most one is being read
        self._pulse = Pulse()
        self._lead_s = 0.0
        self._known_tok_s: float | None = None  # the last prefill rate measured
        self._changed = Condition()  # guards what follows
        self._num_changes = 0
        self._running: tuple[Sequence[Job], CancelFlag] = ((), runner.flag)  # in a native call, and what aborts it
        self._closed = False
        self._thread = Thread(target=self._work, name="localmoe-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Puts `job` in the line; it is told its position unless its turn comes at once."""
        with self._changed:
            if self._closed:
                raise LocalmoeError("the engine is closed", "open it again")
            self._line.join(job)
            self._wake()
        is_reading = any(j.reading for j in list(self._active))
        self._line.tell_positions(num_leaving=0 if is_reading else 1)

    def cancel(self, job: Job) -> None:
        """Ends `job` with what it has: at once while it waits, else as soon as its run looks at the flag."""
        job.cancelled.set()
        if self._line.leave(job):
            self._end(job, "cancelled")
            self._line.tell_positions()
            return
        with self._changed:
            jobs, flag = self._running
            if job in jobs:
                flag.set()
            self._wake()

    def close(self) -> None:
        """Cancels all jobs and waits for the thread."""
        with self._changed:
            self._closed = True
            self._running[1].set()
            self._wake()
        self._thread.join()
        self._pulse.close()

    def _wake(self) -> None:
        self._num_changes += 1
        self._changed.notify_all()

    # The rest runs in the engine's thread.

    def _work(self) -> None:
        while not (self._closed and not self._active and not len(self._line)):
            seen = self._num_changes
            try:
                self._step(seen)
            except Exception as error:  # noqa: BLE001 - whatever happens, streams end and the engine goes on
                for job in list(self._active) or self._line.jobs():
                    self._fail(job, error)

    def _step(self, seen: int) -> None:
        self._end_cancelled()
        waiting = self._line.jobs()
        action = next_action(self._state(waiting), self._reader.max_tokens)
        start_s = time.monotonic()
        self._do(action, waiting, seen)
        seconds = time.monotonic() - start_s
        self._lead_s = next_lead(self._lead_s, action, seconds, self._actives())

    def _do(self, action: Action, waiting: Sequence[Job], seen: int) -> None:
        if isinstance(action, Admit):
            self._admit(waiting[action.index])
            return
        self._line.tell_positions()
        if isinstance(action, Prefill):
            self._prefill(action.count)
        elif isinstance(action, Decode):
            self._decode()
        else:
            self._wait(waiting, seen)

    def _wait(self, waiting: Sequence[Job], seen: int) -> None:
        assert not waiting, "nothing runs, so the first in the line must fit"
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._num_changes != seen)

    def _state(self, waiting: Sequence[Job]) -> State:
        pages = [Waiting(job.request.session, self._num_pages(job)) for job in waiting]
        return State(pages, self._actives(), self._sessions.num_available() if waiting else 0, self._lead_s)

    def _actives(self) -> list[Active]:
        return [Active(job.request.session, job.num_unread if job.reading else 0) for job in self._active]

    def _num_pages(self, job: Job) -> int:
        return -(-min(job.num_tokens + 1, self.context_limit) // PAGE_TOKENS)

    def _admit(self, job: Job) -> None:
        if not self._line.leave(job):  # cancelled meanwhile
            return
        self._active.append(job)
        session = self._sessions.open(job.request.session, job.ids)
        job.start(session)
        if not self._sessions.reserve(session, job.num_tokens):
            raise OutOfMemoryError(
                "the latent cache has no room for this prompt", "close other chats, or wait for them"
            )
        job.progress(self._known_tok_s)

    def _prefill(self, count: int) -> None:
        job = next(j for j in self._active if j.reading)
        assert job.session is not None
        start = job.session.num_tokens
        ids = job.ids[start : start + count]
        table = job.session.table
        with self._pulse.beating(lambda: self._tell_chunk(job, len(ids))):
            logits = self._run([job], self._reader.flag, lambda: self._reader.read(ids, table, start))
        if logits is None:
            return
        job.has_read(ids)
        job.progress(self._known_tok_s)
        if not job.reading:
            self._known_tok_s = (
                job.meter.prefill_tok_s if job.meter.num_read >= KNOWN_FROM_TOKENS else self._known_tok_s
            )
            self._choose(job, logits)

    def _tell_chunk(self, job: Job, num_tokens: int) -> None:
        if done := self._reader.progress:
            job.progress(self._known_tok_s, done * num_tokens)

    def _decode(self) -> None:
        jobs = self._with_room()
        sessions = [job.session for job in jobs if job.session]
        tokens = [job.output[-1] for job in jobs]
        tables, starts = [s.table for s in sessions], [s.num_tokens for s in sessions]
        rows = self._run(jobs, self._runner.flag, lambda: self._runner.step(tokens, tables, starts)) if jobs else None
        if rows is None:
            return
        for job, row in zip(jobs, rows, strict=True):
            job.has_read(job.output[-1:])
            self._choose(job, row)

    def _with_room(self) -> list[Job]:
        """All that decode, each with room for one token more; if need be the youngest give up their pages."""
        for job in list(self._active):
            while job.session and not job.reading and not self._make_room(job.session):
                youngest = self._active.pop()
                youngest.stop()
                self._line.return_first(youngest)
        return [job for job in self._active if not job.reading]

    def _make_room(self, session: Session) -> bool:
        return self._sessions.reserve(session, session.num_tokens + 1)

    def _run(
        self, jobs: Sequence[Job], flag: CancelFlag, call: Callable[[], NDArray[np.float32]]
    ) -> NDArray[np.float32] | None:
        """What the native `call` returns, or None: it was aborted for one of `jobs`, or failed for all."""
        with self._changed:
            if self._closed or any(job.cancelled.is_set() for job in jobs):
                return None
            flag.clear()
            self._running = jobs, flag
        try:
            return call()
        except CancelledError:
            return None
        except Exception as error:  # noqa: BLE001 - the requests fail, the engine goes on
            for job in jobs:
                self._fail(job, error)
            return None
        finally:
            with self._changed:
                self._running = (), flag

    def _choose(self, job: Job, logits: NDArray[np.float32]) -> None:
        try:
            job.choose(logits)
        except Exception as error:  # noqa: BLE001 - this request fails, those beside it go on
            self._fail(job, error)
            return
        if reason := job.reason_to_stop(self.context_limit):
            self._end(job, reason)
        elif job.meter.is_due():
            job.stream.put(job.stats(self.context_limit, len(self._active), len(self._line)))

    def _end_cancelled(self) -> None:
        for job in [*self._active, *self._line.jobs()]:
            if (self._closed or job.cancelled.is_set()) and (job.session or self._line.leave(job)):
                self._end(job, "cancelled")

    def _end(self, job: Job, reason: FinishReason) -> None:
        stats = job.stats(self.context_limit, len(self._active), len(self._line))
        self._let_go(job)
        job.finish(reason, stats)

    def _fail(self, job: Job, error: Exception) -> None:
        if job.session:
            job.session.rewind(0)  # what it holds is in doubt
        self._let_go(job)
        job.fail(error)

    def _let_go(self, job: Job) -> None:
        self._line.leave(job)
        if job in self._active:
            self._active.remove(job)
        job.stop()

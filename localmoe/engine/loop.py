"""The engine's threads: they do what the policy says, and tell each request how it is doing.

One thread reads prompts and another makes answers, at the same time, where the network can be run twice at once. Where
it cannot, one thread does both in turns.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import Any, Self

from localmoe.decode.runner import Runner
from localmoe.engine.inside import Inside
from localmoe.engine.job import Job
from localmoe.engine.phases import Begun, Decoding, Prefilling
from localmoe.engine.roster import Roster, Run
from localmoe.engine.scheduler import (
    Action,
    Admit,
    Decode,
    Idle,
    Limits,
    Prefill,
    State,
    next_lead,
    next_pass,
    next_read,
    next_step,
    next_turn,
)
from localmoe.engine.shares import ShareControl
from localmoe.errors import LocalmoeError
from localmoe.kernels.ops import PAGE_TOKENS, CancelFlag, Program
from localmoe.model.cache import LatentCache
from localmoe.prefill.reader import Reader

Policy = Callable[[State, Limits], Action]


class Loop:
    """Answers jobs until it is closed. `submit`, `cancel` and `close` may be called from any thread.

    `together`: reader and runner may run at the same time; else they take turns. `read` is prefill's policy, `turn`
    that of both where they take turns.
    """

    def __init__(
        self,
        cache: LatentCache,
        reader: Reader,
        runner: Runner,
        context_limit: int,
        inside: Inside | None = None,
        *,
        together: bool = True,
        limits: Limits | None = None,
        shares: ShareControl | None = None,
        passer: Reader | None = None,
        read: Policy = next_read,
        turn: Policy = next_turn,
    ) -> None:
        assert context_limit <= cache.num_pages * PAGE_TOKENS, "one session alone must always fit"
        self.context_limit = context_limit
        self.reader, self.runner, self.passer = reader, runner, passer
        self._limits = replace(limits or Limits(reader.max_tokens), passing=passer.max_tokens if passer else 0)
        self._roster = Roster(cache, context_limit, inside or Inside())
        self.sessions = self._roster.sessions
        self._prefilling = Prefilling(self._roster, reader)
        self._passing = Prefilling(self._roster, passer, reader) if passer else None
        self._decoding = Decoding(self._roster, runner, shares)
        self._together = together
        self._lead_s = 0.0  # where they take turns
        policies = {"prefill": read, "decode": next_step} if together else {"engine": turn}
        if passer:
            assert together, "nothing passes what takes turns"
            policies["passing"] = next_pass
        self._threads = [
            Thread(target=self._work, args=(policy,), name=f"localmoe-{name}", daemon=True)
            for name, policy in policies.items()
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def over(
        cls,
        cache: LatentCache,
        prefill: Program,
        decode: Program,
        new_flag: Callable[[], CancelFlag],
        context_limit: int,
        passing: Program | None = None,
        **options: Any,
    ) -> Self:
        """A loop over one program for each phase, and one for short prompts that pass long ones."""
        passer = Reader(passing, new_flag()) if passing else None
        reader, runner = Reader(prefill, new_flag()), Runner(decode, new_flag())
        return cls(cache, reader, runner, context_limit, passer=passer, **options)

    def submit(self, job: Job) -> None:
        """Puts `job` in the line; it is told its position unless its turn comes at once."""
        roster = self._roster
        with roster.changed:
            if roster.closed:
                raise LocalmoeError("the engine is closed", "open it again")
            roster.join(job)
            is_reading = any(j.reading for j in roster.active)
            roster.tell_positions(num_leaving=0 if is_reading else 1)
            roster.wake()

    def cancel(self, job: Job) -> None:
        """Ends `job` with what it has: at once while it waits, else as soon as its run looks at the flag."""
        job.cancelled.set()
        roster = self._roster
        with roster.changed:
            if roster.line.leave(job):
                roster.end(job, "cancelled")
                roster.tell_positions()
            roster.abort(job)
            roster.wake()

    def close(self) -> None:
        """Cancels all jobs and waits for the threads."""
        with self._roster.changed:
            self._roster.closed = True
            for run in self._roster.running:
                run.flag.set()
            self._roster.wake()
        for thread in self._threads:
            thread.join()
        self._prefilling.close()
        if self._passing:
            self._passing.close()
        self.sessions.close()

    # The rest runs in the engine's threads.

    def _work(self, policy: Policy) -> None:
        while (chosen := self._next(policy)) is not None:
            action, (run, work) = chosen
            start_s = time.monotonic()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever happens, streams end and the engine goes on
                self._give_up(run, error)
            if not self._together:
                self._count(action, time.monotonic() - start_s)

    def _next(self, policy: Policy) -> tuple[Action, Begun] | None:
        """What `policy` wants done, as soon as there is something; None once the engine is closed and all is done."""
        roster = self._roster
        with roster.changed:
            while True:
                try:
                    if roster.is_done:
                        roster.wake()
                        return None
                    if chosen := self._choose(policy):
                        return chosen
                except Exception as error:  # noqa: BLE001 - whatever happens, streams end and the engine goes on
                    roster.fail_all(error)

    def _choose(self, policy: Policy) -> tuple[Action, Begun] | None:
        """What to run now; None once something else was done, or waited for."""
        roster = self._roster
        roster.end_cancelled()
        if roster.is_done:
            return None
        action = policy(roster.state(self._lead_s), self._limits)
        if policy is not next_step and not isinstance(action, Admit):
            roster.tell_positions()  # those that whoever reads next has left waiting
        if begun := self._begin(action, self._passing if policy is next_pass else self._prefilling):
            return action, begun
        if isinstance(action, Idle) or (isinstance(action, Decode) and roster.running):
            roster.changed.wait()  # a step without room waits for the prompt that gives way
        return None

    def _begin(self, action: Action, prefilling: Prefilling | None) -> Begun | None:
        roster = self._roster
        if isinstance(action, Admit):
            roster.admit(roster.line.jobs()[action.index])
            return None
        if isinstance(action, Prefill):
            assert prefilling is not None
            return prefilling.begin(roster.active[action.index], action.count)
        return self._decoding.begin() if isinstance(action, Decode) else None

    def _count(self, action: Action, seconds: float) -> None:
        with self._roster.changed:
            active = self._roster.state().active
        self._lead_s = next_lead(self._lead_s, action, seconds, active)

    def _give_up(self, run: Run, error: Exception) -> None:
        with self._roster.changed:
            for job in run.jobs:
                self._roster.fail(job, error)
            if run in self._roster.running:
                self._roster.stop(run)

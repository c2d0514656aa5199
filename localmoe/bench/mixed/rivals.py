"""Other ways to run both phases, with the same kernels: what our scheduler is measured against.

All serve first come, first served, with the same batch of answers:

* exclusive: a prompt is read whole before anything else goes on;
* chunked: one loop, in which a chunk of a prompt and a step of all answers take turns. (Engines on GPUs read both in
  one run; here attention of the answers' tokens would then take the form that is made for prompts.)
* split: two instances, each phase on its own half of the cores.
"""

from dataclasses import replace

from localmoe.engine.instance import Ground, Instance
from localmoe.engine.plan.choices import MOST_SHARE
from localmoe.engine.scheduler import (
    MAX_BATCH,
    PASSING_TOKENS,
    Action,
    Admit,
    Idle,
    Limits,
    Prefill,
    State,
    next_read,
    next_step,
)
from localmoe.engine.shares import ShareControl
from localmoe.hardware.placement import worker_cpus

BESIDE_TOKENS = 256  # of a long prompt at once, where there are other requests: the next long one waits no longer


def ours(ground: Ground) -> Instance:
    """This engine, with decode's share as its targets ask for, and short prompts that pass long ones."""
    shares = ShareControl(ground.pool, ground.network.config, most=MOST_SHARE)
    return Instance(
        ground, passing_tokens=PASSING_TOKENS, limits=Limits(ground.chunk, MAX_BATCH, BESIDE_TOKENS), shares=shares
    )


def exclusive(ground: Ground) -> Instance:
    """Whole prompts first."""
    return Instance(ground, together=False, limits=Limits(ground.chunk, MAX_BATCH), turn=prompts_first)


def chunked(ground: Ground, chunk: int) -> Instance:
    """A chunk of `chunk` tokens, a step, and so on."""
    return Instance(ground, together=False, limits=Limits(chunk, MAX_BATCH), turn=ChunkThenStep())


def split(ground: Ground) -> Instance:
    """Half of the cores for each phase; what one reads and the other goes on with is in one cache."""
    cpus = worker_cpus(max(2, ground.network.num_threads))
    half = len(cpus) // 2
    programs = ground.program(ground.chunk, cpus[:half]), ground.program(MAX_BATCH, cpus[half:])
    return Instance(ground, programs, limits=Limits(ground.chunk, MAX_BATCH), read=first_come)


def first_come(state: State, limits: Limits) -> Admit | Prefill | Idle:
    """Prompts in the order in which they came, each whole."""
    return next_read(_without_lengths(state), limits)


def prompts_first(state: State, limits: Limits) -> Action:
    """Answers go on only while there is nothing to read."""
    read = first_come(state, limits)
    return next_step(state, limits) if isinstance(read, Idle) else read


class ChunkThenStep:
    """A policy that remembers what came last."""

    def __init__(self) -> None:
        self._was_read = False

    def __call__(self, state: State, limits: Limits) -> Action:
        """The other one of the two, where both have work."""
        read, step = first_come(state, limits), next_step(state, limits)
        if isinstance(read, Admit) or isinstance(step, Idle):
            return read
        if isinstance(read, Idle):
            return step
        self._was_read = not self._was_read
        return read if self._was_read else step


def _without_lengths(state: State) -> State:
    """Due when they came: reading takes no time."""
    return replace(state, read_tok_s=1e9)

"""What the engine does next: a policy over plain values. It never sees a token, a page or a thread.

Prompts are read by due time: first come, first served among prompts of one length, while a short one passes long ones
that came little earlier. A long prompt gives way between chunks, to a short one also in the middle where the plan has a
program for it, and only to prompts that came before its own time was up. Answers are made together, in one step for
all. On plans that run both phases at once, each asks for its own next thing to do; on the others they take turns of the
same length, short enough for a person not to notice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_BATCH = 8  # sessions in one decode step: so many share one reading of the weights
MAX_BEGUN = 4  # prompts of which a part is read: each holds its pages
SMALL_CHUNK = 64  # a prefill chunk that takes turns with decode has at least so many tokens
PASSING_TOKENS = 128  # of prompts that are read while a longer one's run goes on
PATIENCE = 4.0  # a prompt is due after so many times what reading it takes
AIM = 0.75  # of a target, by when a prompt is to be read: what else goes on takes time too
ASSUMED_TOK_S = 100.0  # of reading, before any was measured


@dataclass(frozen=True, slots=True)
class Limits:
    """What the plan allows."""

    chunk: int  # tokens of a prompt that are read in one run
    batch: int = MAX_BATCH  # answers that are made together, those being read included
    beside: int | None = None  # tokens that are read in one run while there are other requests; None: as alone
    passing: int = 0  # tokens to read, at most, of a prompt that is read while a longer one's run goes on


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the line."""

    session: str
    num_pages: int  # to hold its prompt and one token more
    unread: int = 1  # tokens to read, as far as is known
    since_s: float = 0.0  # when it came
    target_s: float = 30.0  # to its first token


@dataclass(frozen=True, slots=True)
class Active:
    """A request that holds pages: one that is being read has tokens left to read."""

    session: str
    unread: int = 0
    since_s: float = 0.0
    target_s: float = 30.0
    admitted: int = 0  # tokens that were to be read when it was
    runs: bool = False  # it is in a run now


@dataclass(frozen=True, slots=True)
class State:
    """All that the policy looks at."""

    waiting: Sequence[Waiting]
    active: Sequence[Active]  # oldest first
    free_pages: int  # those of idle sessions included
    lead_s: float = 0.0  # how much longer decode than prefill has run since both have work; where they take turns
    read_tok_s: float | None = None  # as last measured


@dataclass(frozen=True, slots=True)
class Admit:
    """Give pages to the request at `index` of the line, and begin to read it."""

    index: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Read `count` more tokens of the active request at `index`."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Decode:
    """One step for all sessions that decode."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do until something changes."""


Action = Admit | Prefill | Decode | Idle


def next_read(state: State, limits: Limits) -> Admit | Prefill | Idle:
    """What prefill does next: whoever is due first, of those that are being read and those that may be."""
    reading = [n for n, a in enumerate(state.active) if a.unread and not a.runs]
    first = min(reading, key=lambda n: due_s(state.active[n], state.read_tok_s), default=None)
    index = admissible(state, limits)
    if index is not None and (first is None or _passes(state, index, first, len(reading))):
        return Admit(index)
    return Idle() if first is None else Prefill(first, min(state.active[first].unread, _chunk(state, limits)))


def next_pass(state: State, limits: Limits) -> Admit | Prefill | Idle:
    """What is read meanwhile, while another prompt's run goes on: a short one that is due before that one.

    It needs no end of that run, so runs may be long; and answers are made beside both.
    """
    running = next((a for a in state.active if a.unread and a.runs), None)
    if running is None:
        return Idle()

    def passes(request: Waiting | Active) -> bool:
        is_short = 0 < request.unread <= min(limits.passing, running.unread - 1)
        return is_short and due_s(request, state.read_tok_s) < due_s(running, state.read_tok_s)

    reading = [n for n, a in enumerate(state.active) if not a.runs and passes(a)]
    if reading:
        first = min(reading, key=lambda n: due_s(state.active[n], state.read_tok_s))
        return Prefill(first, state.active[first].unread)
    index = admissible(state, limits)
    return Idle() if index is None or not passes(state.waiting[index]) else Admit(index)


def next_step(state: State, limits: Limits) -> Decode | Idle:
    """What decode does next."""
    return Decode() if any(not a.unread for a in state.active) else Idle()


def next_turn(state: State, limits: Limits) -> Action:
    """What to do next where only one phase runs at a time: the one that has run less, while both have work."""
    read, step = next_read(state, limits), next_step(state, limits)
    if isinstance(step, Idle) or isinstance(read, Admit):
        return read
    if isinstance(read, Idle) or state.lead_s <= 0:
        return step
    return Prefill(read.index, min(read.count, max(SMALL_CHUNK, limits.chunk // 4)))


def needed_share(state: State, now_s: float) -> float:
    """The part of the workers' time that prompts need from now on to be read by their targets, each in its turn.

    At most 1: a prompt that comes too late whatever it gets needs no haste.
    """
    if not state.read_tok_s:
        return 0.0
    prompts: list[Waiting | Active] = [*state.waiting, *(a for a in state.active if a.unread)]
    most = before_s = 0.0
    for prompt in sorted(prompts, key=lambda p: p.since_s + p.target_s):
        gone_s = now_s - prompt.since_s
        read_s = before_s + prompt.unread / state.read_tok_s
        if read_s <= prompt.target_s - gone_s:
            left_s = max(read_s, AIM * prompt.target_s - gone_s)
            most, before_s = max(most, read_s / left_s), read_s
    return most


def due_s(request: Waiting | Active, read_tok_s: float | None) -> float:
    """When a prompt should have been read. Who is due earlier goes first.

    The time grows with a prompt's length, so a short one passes a long one, but none that came later than that one's
    whole time: none waits for ever. A prompt that can be read within its target is due by then at the latest.
    """
    num_tokens = max(request.unread, request.admitted) if isinstance(request, Active) else request.unread
    read_s = num_tokens / (read_tok_s or ASSUMED_TOK_S)
    patience_s = PATIENCE * read_s
    return request.since_s + (min(patience_s, request.target_s) if read_s <= request.target_s else patience_s)


def admissible(state: State, limits: Limits) -> int | None:
    """Who in the line may be read now: of those whose session is free the one due first, if its pages are free too.

    Nobody passes it for want of pages: a long prompt must not starve. Each active session may need one page more.
    """
    if len(state.active) >= limits.batch:
        return None
    busy = {a.session for a in state.active}
    free = [n for n, request in enumerate(state.waiting) if request.session not in busy]
    index = min(free, key=lambda n: due_s(state.waiting[n], state.read_tok_s), default=None)
    if index is None or state.waiting[index].num_pages + len(state.active) > state.free_pages:
        return None
    return index


def next_lead(lead_s: float, action: Action, seconds: float, active: Sequence[Active]) -> float:
    """`lead_s` after `action` took `seconds`: zero as soon as one of the phases has no work."""
    unread = [bool(a.unread) for a in active]
    if all(unread) or not any(unread):
        return 0.0
    return lead_s + seconds if isinstance(action, Decode) else lead_s - seconds


def _chunk(state: State, limits: Limits) -> int:
    """Tokens of a prompt that are read in one run: fewer where a shorter prompt may come to wait for its end."""
    is_alone = len(state.active) + len(state.waiting) < 2
    return limits.chunk if is_alone or limits.beside is None else min(limits.chunk, limits.beside)


def _passes(state: State, index: int, first: int, num_reading: int) -> bool:
    """Whether the request at `index` of the line is read before the rest of the one at `first`."""
    newcomer, other, rate = state.waiting[index], state.active[first], state.read_tok_s
    if num_reading >= MAX_BEGUN or newcomer.unread >= other.unread:
        return False
    return due_s(newcomer, rate) < due_s(other, rate)

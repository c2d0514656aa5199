"""What the engine does next: a policy over plain values. It never sees a token, a page or a thread.

Requests are read one at a time, first come, first served, and then decode together. While some decode
and one is read, both phases get the same share of time, in turns short enough for a person not to notice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_BATCH = 8  # sessions in one decode step
SMALL_CHUNK = 64  # a prefill chunk beside decoding sessions has at least so many tokens


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the line."""

    session: str
    num_pages: int  # to hold its prompt and one token more


@dataclass(frozen=True, slots=True)
class Active:
    """A request that holds pages: the one being read has tokens left to read."""

    session: str
    unread: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All that the policy looks at."""

    waiting: Sequence[Waiting]  # first come first
    active: Sequence[Active]  # oldest first
    free_pages: int  # those of idle sessions included
    lead_s: float = 0.0  # how much longer decode than prefill has run since both have work


@dataclass(frozen=True, slots=True)
class Admit:
    """Start reading the request at `index` of the line."""

    index: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Read `count` more tokens of the request that is being read."""

    count: int


@dataclass(frozen=True, slots=True)
class Decode:
    """One step for all sessions that decode."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do until something changes."""


Action = Admit | Prefill | Decode | Idle


def next_action(state: State, chunk: int) -> Action:
    """The next thing to do; `chunk` is the longest prefill run."""
    unread = sum(a.unread for a in state.active)
    num_decoding = sum(not a.unread for a in state.active)
    if not unread and (index := admissible(state)) is not None:
        return Admit(index)
    if unread and not (num_decoding and state.lead_s <= 0):
        return Prefill(min(unread, chunk, max(SMALL_CHUNK, chunk // 4) if num_decoding else chunk))
    return Decode() if num_decoding else Idle()


def admissible(state: State) -> int | None:
    """Who in the line may be read now: the first whose session is free, if its pages are.

    Nobody overtakes for want of pages: a long prompt must not starve. Each active session may need one page more.
    """
    if len(state.active) >= MAX_BATCH:
        return None
    busy = {a.session for a in state.active}
    for index, request in enumerate(state.waiting):
        if request.session not in busy:
            return index if request.num_pages + len(state.active) <= state.free_pages else None
    return None


def next_lead(lead_s: float, action: Action, seconds: float, active: Sequence[Active]) -> float:
    """`lead_s` after `action` took `seconds`: zero as soon as one of the phases has no work."""
    unread = [bool(a.unread) for a in active]
    if all(unread) or not any(unread):
        return 0.0
    return lead_s + seconds if isinstance(action, Decode) else lead_s - seconds

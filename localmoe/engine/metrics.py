"""How a request is doing: counted and measured, never invented."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STATS_EVERY_S = 0.25
MOST_PARTS = 32
MOST_AHEAD = 16  # tokens: an answer that was fast for long is not slow for long


@dataclass
class Meter:
    """One request's times. `clock` counts seconds."""

    clock: Callable[[], float] = time.monotonic
    num_read: int = 0  # prompt tokens read, not those found in the cache
    num_made: int = 0
    num_thought: int = 0
    _submitted_s: float = field(init=False)
    _reading_s: float | None = None  # when reading began
    _read_s: float | None = None  # when the last chunk ended
    _parts: list[float] = field(default_factory=list)  # rates
    _parted: tuple[float, float] = (0.0, 0.0)  # when the last part ended, and tokens read until then
    _first_s: float | None = None
    _last_s: float | None = None
    _thought_from_s: float | None = None
    _thought_to_s: float | None = None
    _shown_s: float | None = None
    _num_shown: int = 0  # tokens made until then
    _now_tok_s: float | None = None

    def __post_init__(self) -> None:
        self._submitted_s = self.clock()

    def reading(self) -> None:
        """The first chunk begins."""
        self._reading_s, self._read_s, self.num_read = self.clock(), None, 0
        self._parts, self._parted = [], (self._reading_s, 0.0)

    def resumed(self) -> None:
        """Reading goes on after another prompt was read: that time is not counted."""
        if self._read_s is not None:
            gap_s = self.clock() - self._read_s
            self.gave_way(gap_s)
            self._read_s += gap_s

    def gave_way(self, seconds: float) -> None:
        """Another prompt was read for so long: that time is not counted."""
        if self._reading_s is not None:
            self._reading_s, self._parted = self._reading_s + seconds, (self._parted[0] + seconds, self._parted[1])

    def read(self, num_tokens: int) -> None:
        """A chunk of the prompt is done."""
        self.num_read += num_tokens
        self._read_s = self.clock()

    def reading_tok_s(self, num_more: float) -> float | None:
        """The rate as of now, when `num_more` tokens' worth of the running chunk is done."""
        return _rate(self.num_read + num_more, _between(self._reading_s, self.clock()))

    def parts_tok_s(self, num_more: float) -> tuple[float, ...]:
        """Rates of the parts until now, the newest of which begins where the last call was made."""
        (then_s, then), (now_s, now) = self._parted, (self.clock(), self.num_read + num_more)
        if now > then and now_s > then_s:
            self._parts = [*self._parts, (now - then) / (now_s - then_s)][-MOST_PARTS:]
            self._parted = now_s, now
        return tuple(self._parts)

    def made(self, *, thought: bool) -> None:
        """A token was chosen, as part of a thought or not."""
        now = self.clock()
        self.num_made += 1
        self._first_s, self._last_s = now if self._first_s is None else self._first_s, now
        if thought:
            self.num_thought += 1
            self._thought_from_s = now if self._thought_from_s is None else self._thought_from_s
            self._thought_to_s = now

    def is_due(self) -> bool:
        """Whether it is time to show figures again; then counts from now."""
        now = self.clock()
        if self._shown_s is not None and now - self._shown_s < STATS_EVERY_S:
            return False
        self._now_tok_s = _rate(self.num_made - self._num_shown, _between(self._shown_s, now))
        self._shown_s, self._num_shown = now, self.num_made
        return True

    def ahead_s(self, tpot_s: float) -> float:
        """How much sooner the tokens since the first one came than one in `tpot_s` seconds; the last few count."""
        if self._first_s is None:
            return 0.0
        ahead_s = (self.num_made - 1) * tpot_s - (self.clock() - self._first_s)
        return max(-MOST_AHEAD * tpot_s, min(MOST_AHEAD * tpot_s, ahead_s))

    @property
    def ttft_s(self) -> float | None:
        """From submit to the first token, waiting in line included."""
        return _between(self._submitted_s, self._first_s)

    @property
    def prefill_tok_s(self) -> float | None:
        """Tokens read, over the time since reading began."""
        return _rate(self.num_read, _between(self._reading_s, self._read_s))

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens after the first, over the time that they took."""
        return _rate(self.num_made - 1, _between(self._first_s, self._last_s))

    @property
    def decode_now_tok_s(self) -> float | None:
        """Tokens between the last two times that figures were due, over the time between."""
        return self._now_tok_s

    @property
    def thought_s(self) -> float | None:
        """From the first to the last token of the thought."""
        return _between(self._thought_from_s, self._thought_to_s)


class Every:
    """True at most once in STATS_EVERY_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time again; then counts from now."""
        now = self._clock()
        if now - self._last_s < STATS_EVERY_S:
            return False
        self._last_s = now
        return True


def estimate_s(num_left: int, tok_s: float | None) -> float | None:
    """Seconds for `num_left` tokens at a measured rate; None when none was measured."""
    return num_left / tok_s if tok_s else None


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _rate(count: float, seconds: float | None) -> float | None:
    return count / seconds if seconds and count > 0 else None

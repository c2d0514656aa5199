"""How a request is doing: counted and measured, never invented."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STATS_EVERY_S = 0.25


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
    _first_s: float | None = None
    _last_s: float | None = None
    _thought_from_s: float | None = None
    _thought_to_s: float | None = None
    _shown_s: float | None = None

    def __post_init__(self) -> None:
        self._submitted_s = self.clock()

    def reading(self) -> None:
        """The first chunk begins."""
        self._reading_s, self.num_read = self.clock(), 0

    def read(self, num_tokens: int) -> None:
        """A chunk of the prompt is done."""
        self.num_read += num_tokens
        self._read_s = self.clock()

    def reading_tok_s(self, num_more: float) -> float | None:
        """The rate as of now, when `num_more` tokens' worth of the running chunk is done."""
        return _rate(self.num_read + num_more, _between(self._reading_s, self.clock()))

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
        self._shown_s = now
        return True

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
    def thought_s(self) -> float | None:
        """From the first to the last token of the thought."""
        return _between(self._thought_from_s, self._thought_to_s)


def estimate_s(num_left: int, tok_s: float | None) -> float | None:
    """Seconds for `num_left` tokens at a measured rate; None when none was measured."""
    return num_left / tok_s if tok_s else None


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _rate(count: float, seconds: float | None) -> float | None:
    return count / seconds if seconds and count > 0 else None

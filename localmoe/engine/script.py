"""A scripted answer and how it is played: nominal times, pauses, limits and failures."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event as Signal
from typing import Any

from localmoe.engine.request import Request
from localmoe.engine.stream import EventStream
from localmoe.errors import LocalmoeError
from localmoe.events import Channel, Event, Finished, FinishReason, PrefillProgress, Stats, TextDelta, Workers

STATS_EVERY_S = 0.25
_TOKEN = re.compile(r"\s*\S+|\s+")


def words(text: str) -> list[str]:
    """The tokens of `text`: words with the space before them."""
    return _TOKEN.findall(text)


@dataclass(frozen=True, slots=True)
class Script:
    """One answer and its nominal times. Tokens are words with the space before them."""

    answer: str = ""
    thought: str = ""
    prompt_tokens: int | None = None  # None: counted
    prefill_ticks: int = 2
    prefill_tick_s: float = 0.1
    token_s: float = 0.05
    reason: FinishReason = "stop"
    error: LocalmoeError | None = None  # raised instead of finishing, after `error_after` tokens
    error_after: int = 0
    pause_in_prefill: int | None = None  # waits for resume() after so many ticks
    pause_after: int | None = None  # waits for resume() after so many tokens
    looks: tuple[Event, ...] = ()  # into the engine: told with each progress and with all figures
    workers: Workers | None = None

    def tokens(self) -> list[tuple[Channel, str]]:
        """Thought first, then answer."""
        thought: list[tuple[Channel, str]] = [("thought", text) for text in words(self.thought)]
        return thought + [("answer", text) for text in words(self.answer)]


class StoppedError(Exception):
    """The answer ends here."""

    def __init__(self, reason: FinishReason) -> None:
        self.reason = reason


class Clock:
    """Sleeps for scaled nominal times and holds still at pauses, unless cancelled."""

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self.resumed = Signal()

    def sleep(self, nominal_s: float, cancelled: Signal) -> None:
        if cancelled.wait(nominal_s * self.time_scale) if self.time_scale else cancelled.is_set():
            raise StoppedError("cancelled")

    def pause(self, cancelled: Signal) -> None:
        while not self.resumed.wait(0.005):
            self.sleep(0, cancelled)
        self.resumed.clear()


@dataclass(eq=False)
class Run:
    """One request on its way."""

    request: Request
    script: Script
    num_prompt: int
    cached: int = 0
    limit: int = 0
    prefill_s: float = 0.0
    made: list[tuple[Channel, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cancelled = Signal()
        self.stream = EventStream(self.cancelled.set)

    @property
    def num_made(self) -> int:
        return len(self.made)

    def play(self, clock: Clock) -> Iterator[Event]:
        yield from self._prefill(clock)
        yield from self._decode(clock)

    def _prefill(self, clock: Clock) -> Iterator[Event]:
        script, to_read = self.script, self.num_prompt - self.cached
        ticks = max(1, script.prefill_ticks)
        for tick in range(ticks + 1):
            done = self.cached + to_read * tick // ticks
            tok_s = to_read / (ticks * script.prefill_tick_s) if tick and script.prefill_tick_s else 0.0
            eta_s = (ticks - tick) * script.prefill_tick_s if tick else None
            yield PrefillProgress(done, self.num_prompt, self.cached, tok_s, eta_s, (tok_s,) * tick)
            yield from script.looks
            if tick == script.pause_in_prefill:
                clock.pause(self.cancelled)
            if tick < ticks:
                clock.sleep(script.prefill_tick_s, self.cancelled)
                self.prefill_s += script.prefill_tick_s

    def _decode(self, clock: Clock) -> Iterator[Event]:
        script, shown_s = self.script, -STATS_EVERY_S
        for channel, text in script.tokens():
            self._check_limits()
            clock.sleep(script.token_s, self.cancelled)
            self.made.append((channel, text))
            yield TextDelta(text, channel)
            if self.num_made * script.token_s - shown_s >= STATS_EVERY_S:
                shown_s = self.num_made * script.token_s
                yield from script.looks
                yield self.stats(0)
            if self.num_made == script.pause_after:
                clock.pause(self.cancelled)
        if self.script.error:
            raise self.script.error
        self._check_limits()
        clock.sleep(0, self.cancelled)

    def _check_limits(self) -> None:
        if self.script.error and self.num_made >= self.script.error_after:
            raise self.script.error
        if self.request.max_tokens is not None and self.num_made >= self.request.max_tokens:
            raise StoppedError("length")
        if self.num_prompt + self.num_made > self.limit:
            raise StoppedError("context")

    def text(self, channel: Channel) -> str:
        return "".join(text for c, text in self.made if c == channel)

    def figures(self) -> dict[str, Any]:
        """TTFT and rates, from nominal times."""
        token_s, read = self.script.token_s, self.num_prompt - self.cached
        return {
            "ttft_s": self.prefill_s + token_s if self.made else None,
            "prefill_tok_s": read / self.prefill_s if self.prefill_s and self.made else None,
            "decode_tok_s": 1 / token_s if token_s and self.num_made > 1 else None,
        }

    def stats(self, num_queued: int) -> Stats:
        thought = sum(channel == "thought" for channel, _ in self.made)
        return Stats(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached,
            completion_tokens=self.num_made,
            thought_tokens=thought,
            context_tokens=self.num_prompt + self.num_made,
            context_limit=self.limit,
            thought_s=thought * self.script.token_s if thought else None,
            num_queued=num_queued,
            workers=self.script.workers,
            **self.figures(),
        )

    def finished(self, reason: FinishReason) -> Finished:
        return Finished(
            reason=reason,
            text=self.text("answer"),
            reasoning=self.text("thought"),
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached,
            completion_tokens=self.num_made,
            prompt_ids=tuple(range(self.num_prompt)),
            output_ids=tuple(range(self.num_made)),
            **self.figures(),
        )

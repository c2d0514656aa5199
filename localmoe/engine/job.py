"""One request while the engine answers it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.sampler import Sampler
from localmoe.engine.metrics import Meter, estimate_s
from localmoe.engine.request import Request
from localmoe.engine.session import Session
from localmoe.engine.stream import EventStream
from localmoe.errors import LocalmoeError
from localmoe.events import Channel, Failed, Finished, FinishReason, PrefillProgress, Queued, Stats, TextDelta


@dataclass(frozen=True, slots=True)
class Targets:
    """What an answer should keep to: seconds to its first token, and for each one after it."""

    ttft_s: float = 30.0
    tpot_s: float = 0.050

    def of(self, request: Request) -> "Targets":
        """Those that `request` has of its own in the place of these."""
        ttft_s = self.ttft_s if request.ttft_target_s is None else request.ttft_target_s
        return Targets(ttft_s, self.tpot_s if request.tpot_target_ms is None else 1e-3 * request.tpot_target_ms)


DEFAULT_TARGETS = Targets()


class Splitter(Protocol):
    """Turns token ids into text, marked as thought or answer."""

    num_thought_tokens: int

    def feed(self, token_id: int) -> list[tuple[Channel, str]]: ...
    def flush(self) -> list[tuple[Channel, str]]: ...


class Job:
    """A request, its prompt's ids and its answer so far.

    While it `runs` it belongs to the phase that runs it, else to whoever holds the roster's lock; `cancelled` is
    anybody's.
    """

    def __init__(
        self,
        request: Request,
        prompt: Sequence[int],
        splitter: Splitter,
        *,
        max_tokens: int | None,
        stop_ids: frozenset[int],
        on_cancel: Callable[["Job"], None],
        meter: Meter | None = None,
        targets: Targets = DEFAULT_TARGETS,
    ) -> None:
        self.request = request
        self.prompt = list(prompt)
        self.output: list[int] = []  # all that was chosen, the stop token included
        self.stream = EventStream(lambda: on_cancel(self))
        self.cancelled = threading.Event()
        self.session: Session | None = None  # while it is read or decodes
        self.queued: Queued | None = None  # its place in the line, as last told
        self.reading = False  # has tokens to read before it may decode
        self.runs = False  # in a phase's hands
        self.gives_way = False  # its run is being aborted: an older request needs its pages
        self.since_s = time.monotonic()  # when it came
        self.num_new = len(prompt)  # tokens to read, as far as is known while it waits
        self.targets = targets.of(request)
        self.num_cached = 0
        self.meter = meter or Meter()
        self._splitter = splitter
        self._sampler = Sampler(request.sampling)
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids
        self._text: dict[Channel, list[str]] = {"thought": [], "answer": []}

    @property
    def ids(self) -> list[int]:
        """Prompt and answer so far: what must be in the cache before the next token, but for the last."""
        return self.prompt + self.output

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer so far."""
        return len(self.prompt) + len(self.output)

    @property
    def num_unread(self) -> int:
        """Tokens to read before the next one can be chosen."""
        assert self.session is not None
        return self.num_tokens - self.session.num_tokens

    def start(self, session: Session) -> None:
        """Takes `session`, and of it what is of use; pages for all that is to be read must follow."""
        session.busy, self.session, self.reading = True, session, True
        kept = session.sync(self.ids)
        if not self.output:
            self.num_cached = kept
            self.meter.reading()

    def stop(self) -> None:
        """Gives the session back with its complete rows."""
        if self.session:
            self.session.rewind(self.session.num_tokens)
            self.session.busy, self.session = False, None

    def has_read(self, ids: Sequence[int]) -> None:
        """The rows of `ids` are complete."""
        assert self.session is not None
        self.session.append(ids)
        self.reading = self.num_unread > 0
        if not self.output:
            self.meter.read(len(ids))

    def progress(self, known_tok_s: float | None, num_more: float = 0.0) -> None:
        """Tells how much of the prompt is read; `num_more` tokens' worth of the running chunk is done.

        The estimate is of this request's rate, else of the one known from the last.
        """
        if self.output:  # an answer that lost its pages is read again
            return
        total, done = len(self.prompt), self.num_cached + self.meter.num_read + int(num_more)
        tok_s = self.meter.prefill_tok_s or self.meter.reading_tok_s(num_more)  # complete chunks tell it better
        eta_s = estimate_s(total - done, tok_s or known_tok_s)
        parts = self.meter.parts_tok_s(num_more)
        self.stream.put(PrefillProgress(done, total, self.num_cached, tok_s or 0.0, eta_s, parts))

    def choose(self, logits: NDArray[np.float32]) -> None:
        """Chooses the next token and tells its text."""
        history = self.ids if self.request.sampling.repetition_penalty != 1 else ()
        token = self._sampler.pick(logits, history)
        self.output.append(token)
        before = self._splitter.num_thought_tokens
        pieces = [] if token in self._stop_ids else self._splitter.feed(token)
        self.meter.made(thought=self._splitter.num_thought_tokens > before)
        self._tell(pieces)

    def reason_to_stop(self, context_limit: int) -> FinishReason | None:
        """Why no further token follows the last one, if so."""
        if self.output[-1] in self._stop_ids:
            return "stop"
        if self._max_tokens is not None and len(self.output) >= self._max_tokens:
            return "length"
        return "context" if self.num_tokens > context_limit else None

    def finish(self, reason: FinishReason, stats: Stats) -> None:
        """The last text, the last figures, the end."""
        self._tell(self._splitter.flush())
        self.stream.put(stats)
        self.stream.put(self._finished(reason))

    def fail(self, error: Exception) -> None:
        """The end, with what went wrong."""
        if isinstance(error, LocalmoeError):
            self.stream.put(Failed.of(error))
            return
        hint = "this is a bug in localmoe; the engine goes on: please try again"
        self.stream.put(Failed(f"internal error: {error!r}", hint))

    def stats(self, context_limit: int, num_active: int, num_queued: int) -> Stats:
        """Figures as of now."""
        m = self.meter
        return Stats(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.num_cached,
            completion_tokens=m.num_made,
            thought_tokens=m.num_thought,
            context_tokens=self.session.num_tokens if self.session else 0,
            context_limit=context_limit,
            ttft_s=m.ttft_s,
            prefill_tok_s=m.prefill_tok_s,
            decode_tok_s=m.decode_tok_s,
            thought_s=m.thought_s,
            num_active=num_active,
            num_queued=num_queued,
            decode_now_tok_s=m.decode_now_tok_s,
        )

    def _tell(self, pieces: list[tuple[Channel, str]]) -> None:
        for channel, text in pieces:
            self._text[channel].append(text)
            self.stream.put(TextDelta(text, channel))

    def _finished(self, reason: FinishReason) -> Finished:
        m = self.meter
        return Finished(
            reason=reason,
            text="".join(self._text["answer"]),
            reasoning="".join(self._text["thought"]),
            prompt_tokens=len(self.prompt),
            cached_tokens=self.num_cached,
            completion_tokens=len(self.output),
            ttft_s=m.ttft_s,
            prefill_tok_s=m.prefill_tok_s,
            decode_tok_s=m.decode_tok_s,
            prompt_ids=tuple(self.prompt),
            output_ids=tuple(self.output),
        )

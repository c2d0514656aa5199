"""A network of one layer that remembers nothing but what lies in the cache: a wrong row gives a wrong token."""

import threading
import time
from collections.abc import Sequence
from itertools import count

import numpy as np

from localmoe.chat.message import Conversation, Message
from localmoe.decode.runner import Runner
from localmoe.engine.job import Job
from localmoe.engine.loop import Loop
from localmoe.engine.request import Request, Sampling
from localmoe.engine.stream import EventStream
from localmoe.errors import CancelledError
from localmoe.events import Channel
from localmoe.kernels.ops import PAGE_TOKENS, Segment
from localmoe.model.cache import LatentCache
from localmoe.prefill.reader import Reader

VOCAB = 50
STOP = 7
GREEDY = Sampling(temperature=0)


class Flag:
    """A CancelFlag in Python."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set, self.is_set, self.clear = self._event.set, self._event.is_set, self._event.clear


class ToyProgram:
    """Logits are a hash of the session's rows. A cancelled run leaves rubbish in its rows."""

    def __init__(self, cache: LatentCache, max_tokens: int, token_s: float = 0.0) -> None:
        self.max_tokens = max_tokens
        self.token_s = token_s
        self.progress = 0.0
        self.runs: list[tuple[int, ...]] = []  # tokens of each segment of each run
        self.times: list[tuple[float, float]] = []  # when each run began and ended
        self.fail_next: Exception | None = None
        self.nan_for: int | None = None  # the last token after which logits are not numbers
        self._rows = cache.layer(0).data

    def forward(self, ids, segments: Sequence[Segment], *, urgent=True, cancel=None, **_) -> np.ndarray:
        assert 0 < len(ids) == sum(s.count for s in segments) <= self.max_tokens
        self.runs.append(tuple(s.count for s in segments))
        offsets = np.cumsum([0, *[s.count for s in segments]])
        for segment, start in zip(segments, offsets[:-1], strict=True):
            self._write(segment, np.full(segment.count, -1))
            self._compute(segment.count, cancel)
            self._write(segment, ids[start : start + segment.count])
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        return np.stack([self._logits(s) for s in segments])

    def _compute(self, num_tokens: int, cancel) -> None:
        start = time.monotonic()
        end = start + num_tokens * self.token_s
        self.times.append((start, end))
        while True:
            self.progress = min(1.0, (time.monotonic() - start) / (num_tokens * self.token_s or 1.0))
            if cancel is not None and cancel.is_set():
                raise CancelledError("cancelled")
            if time.monotonic() >= end:
                return
            time.sleep(0.001)

    def _places(self, segment: Segment, start: int, stop: int):
        position = np.arange(start, stop)
        return segment.table.pages[position // PAGE_TOKENS], position % PAGE_TOKENS, 0

    def _write(self, segment: Segment, values: np.ndarray) -> None:
        self._rows[self._places(segment, segment.start, segment.start + segment.count)] = values

    def _logits(self, segment: Segment) -> np.ndarray:
        rows = self._rows[self._places(segment, 0, segment.start + segment.count)]
        if self.nan_for is not None and rows[-1] == self.nan_for:
            return np.full(VOCAB, np.nan, np.float32)
        return toy_logits(rows.astype(int).tolist())


def toy_logits(ids: Sequence[int]) -> np.ndarray:
    logits = np.random.default_rng([1, *[i + 1 for i in ids]]).normal(size=VOCAB).astype(np.float32)
    logits[STOP] -= 2.0
    return logits


def toy_answer(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What the toy says, without any engine."""
    ids = list(prompt)
    while len(ids) < len(prompt) + max_tokens and (len(ids) == len(prompt) or ids[-1] != STOP):
        ids.append(int(toy_logits(ids).argmax()))
    return ids[len(prompt) :]


class Words:
    """A splitter: a token is its number; the first `num_thought` of them are a thought."""

    def __init__(self, num_thought: int = 0) -> None:
        self.num_thought_tokens = 0
        self._num_thought = num_thought

    def feed(self, token_id: int) -> list[tuple[Channel, str]]:
        if self.num_thought_tokens == self._num_thought:
            return [("answer", f"{token_id} ")]
        self.num_thought_tokens += 1
        return [("thought", f"{token_id} ")]

    def flush(self) -> list[tuple[Channel, str]]:
        return []


class ToyEngine:
    """A loop around the toy, without templates: prompts are token ids."""

    def __init__(
        self,
        num_pages: int = 64,
        context: int = 512,
        chunk: int = 128,
        token_s: float = 0.0,
        together: bool = True,
        passing: int = 0,
    ) -> None:
        self.cache = LatentCache(1, num_pages, 1)
        self.prefill = ToyProgram(self.cache, chunk, token_s)
        self.decode = ToyProgram(self.cache, 8, token_s)
        self.passing = ToyProgram(self.cache, passing, token_s)
        self.loop = Loop(
            self.cache,
            Reader(self.prefill, Flag()),
            Runner(self.decode, Flag()),
            context,
            together=together,
            passer=Reader(self.passing, Flag()) if passing else None,
        )
        self._names = count()

    def ask(
        self,
        prompt: Sequence[int],
        session: str | None = None,
        max_tokens: int | None = 20,
        sampling: Sampling = GREEDY,
        num_thought: int = 0,
        stop_ids: frozenset[int] = frozenset({STOP}),
    ) -> EventStream:
        name = f"s{next(self._names)}" if session is None else session
        request = Request(Conversation((Message("user", "?"),)), sampling, session=name)
        job = Job(
            request,
            prompt,
            Words(num_thought),
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            on_cancel=self.loop.cancel,
        )
        self.loop.submit(job)
        return job.stream

    def answer(self, prompt: Sequence[int], **options) -> list[int]:
        return list(list(self.ask(prompt, **options).events())[-1].output_ids)

    def __enter__(self) -> "ToyEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

"""Decode beside a long prompt, and the prompt beside decode, at a known share of the workers' time."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

from localmoe.bench.rows import Listener, Row
from localmoe.engine.instance import Ground, Instance
from localmoe.engine.job import Job

SHARE = 0.5
PROMPT_TOKENS, SHORT_TOKENS, ANSWER_TOKENS = 2048, 128, 3900
WINDOW_S, NUM_ROUNDS = 4.0, 5
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Round:
    """Measured one after the other: seconds of a token, and tokens per second of a prompt."""

    alone_tpot_s: float
    alone_tok_s: float
    beside_tpot_s: float
    beside_tok_s: float


def measure(ground: Ground, listener: Listener, window_s: float = WINDOW_S, rounds: int = NUM_ROUNDS) -> Iterator[Row]:
    """Rows mixed-tpot (lower is better), mixed-prefill (higher is) and the waits of urgent tiles."""
    pool = ground.pool
    before = pool.share
    pool.share = SHARE
    try:
        with closing(Instance(ground)) as instance:
            beside = Beside(instance, pool, window_s)
            found = []
            for number in range(rounds):
                listener.progress(f"mixed: alone and beside each other, round {number + 1} of {rounds}")
                found.append(beside.round())
    finally:
        pool.share = before
    yield from _rows(found, str(ground.network.isa))
    yield from beside.wait_rows(str(ground.network.isa))


def _rows(found: list[Round], isa: str) -> Iterator[Row]:
    allowed = [r.alone_tpot_s / SHARE for r in found]
    wanted = [r.alone_tok_s * (1 - SHARE) for r in found]
    tpot = median(r.beside_tpot_s / s for r, s in zip(found, allowed, strict=True))
    read = median(r.beside_tok_s / s for r, s in zip(found, wanted, strict=True))
    yield Row(
        "mixed",
        "mixed-tpot",
        "tpot_ms",
        1e3 * median(r.beside_tpot_s for r in found),
        "ms",
        1e3 * median(allowed),
        tpot,
        isa,
        f"decode alone / {SHARE:g}, its share of the workers' time",
    )
    yield Row(
        "mixed",
        "mixed-prefill",
        "tok_s",
        median(r.beside_tok_s for r in found),
        "tok/s",
        median(wanted),
        read,
        isa,
        f"prefill alone x {1 - SHARE:g}",
    )


class Beside:
    """Windows of time in which one phase runs, or both."""

    def __init__(self, instance: Instance, pool: Any, window_s: float) -> None:
        self._instance = instance
        self._pool = pool
        self._window_s = window_s
        self._seed = 0
        self._waits: list[tuple[float, float, float]] = []

    def round(self) -> Round:
        """Both alone, then together."""
        decode = self._decoding()
        alone_s, _ = self._window(decode, None, SHARE * self._window_s)  # to about the same context as beside
        self._end(decode)
        feed = _Feed(self)
        _, alone_tok_s = self._window(None, feed, self._window_s)
        decode = self._decoding()
        self._pool.reset_counters()
        beside_s, beside_tok_s = self._window(decode, feed, self._window_s)
        counters = self._pool.counters()
        self._waits.append((counters.wait_p50_us, counters.wait_p99_us, counters.wait_max_us))
        self._end(decode)
        feed.end()
        return Round(alone_s, alone_tok_s, beside_s, beside_tok_s)

    def wait_rows(self, isa: str) -> Iterator[Row]:
        """How long urgent tiles waited for bulk ones, of all rounds."""
        for name, values in zip(("p50", "p99", "max"), zip(*self._waits, strict=True), strict=True):
            yield Row("mixed", f"urgent-wait-{name}", "us", median(values), "us", isa=isa)

    def ask(self, num_tokens: int, max_tokens: int) -> Job:
        """The next prompt, unlike all before."""
        self._seed += 1
        return self._instance.ask(num_tokens, max_tokens, self._seed)

    def progress(self) -> float:
        """Of the chunk that is being read."""
        reader = self._instance.loop.reader
        return reader.progress * reader.max_tokens

    def _decoding(self) -> Job:
        job = self.ask(SHORT_TOKENS, ANSWER_TOKENS)
        while job.meter.num_made < 3 and not job.stream.ended:
            time.sleep(POLL_S)
        return job

    def _end(self, job: Job) -> None:
        job.stream.cancel()
        for _ in job.stream.events():
            pass

    def _window(self, decode: Job | None, feed: "_Feed | None", window_s: float) -> tuple[float, float]:
        """Seconds of a token, tokens read per second; 0 for the phase that does not run."""
        made, read, start_s = decode.meter.num_made if decode else 0, feed.num_read() if feed else 0.0, time.monotonic()
        while time.monotonic() - start_s < window_s and not (decode and decode.stream.ended):
            time.sleep(10 * POLL_S)
            if feed:
                feed.keep_on()
        seconds = time.monotonic() - start_s
        tpot_s = seconds / max(1, decode.meter.num_made - made) if decode else 0.0
        return tpot_s, (feed.num_read() - read) / seconds if feed else 0.0


class _Feed:
    """Long prompts, one after the other without a pause: there is always one in the line."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._jobs = [beside.ask(PROMPT_TOKENS, 1) for _ in range(2)]
        while not self._jobs[0].meter.num_read:
            time.sleep(POLL_S)

    def keep_on(self) -> None:
        """Asks for another prompt as soon as the line is empty."""
        if sum(not job.stream.ended for job in self._jobs) < 2:
            self._jobs.append(self._beside.ask(PROMPT_TOKENS, 1))

    def num_read(self) -> float:
        """Tokens so far, the running chunk's among them as far as it is."""
        return sum(job.meter.num_read for job in self._jobs) + self._beside.progress()

    def end(self) -> None:
        """Stops them."""
        for job in self._jobs:
            job.stream.cancel()
        for job in self._jobs:
            for _ in job.stream.events():
                pass

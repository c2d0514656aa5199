"""Suites prefill and decode: prompts of a known length, read and continued by the engine."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from localmoe.bench.prompts import prompt_of
from localmoe.bench.rows import Listener, Row
from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineFace, Request, Sampling
from localmoe.errors import LocalmoeError
from localmoe.events import Failed, Finished

PREFILL_TOKENS = (512, 2048)
DECODE_TOKENS = (128, 8192)
NUM_DECODED = 64
REPEATS = 3
CASE_S = 100.0  # no further repeat is begun after this
# An answer is cut off after this, and what was measured of it counts: with the other cases it keeps to ten minutes.
ANSWER_S = {"prefill": 200.0, "decode": 420.0}
# Tokens as they fall: greedy decoding would circle through a few of them, and their experts stay in caches.
SAMPLING = Sampling(temperature=1.0, top_p=1.0)


class NotMeasuredError(Exception):
    """Why a case has no figure."""


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts of `num_tokens`, and what is measured with them."""

    suite: str
    num_tokens: int
    num_decoded: int

    @property
    def name(self) -> str:
        return f"{self.suite}-{self.num_tokens}"

    @property
    def context(self) -> int:
        """Tokens of context that it needs."""
        return self.num_tokens + self.num_decoded + 1


CASES = {
    "prefill": tuple(Case("prefill", n, 1) for n in PREFILL_TOKENS),
    "decode": tuple(Case("decode", n, NUM_DECODED) for n in DECODE_TOKENS),
}


def context_for(suites: tuple[str, ...]) -> int:
    """The context that all cases of `suites` fit into; 0 when none needs an engine."""
    return max((case.context for suite in suites for case in CASES.get(suite, ())), default=0)


def measure(engine: EngineFace, suite: str, listener: Listener) -> Iterator[Row]:
    """The suite's rows. A longer case has the shortest one for a reference."""
    _warm_up(engine)
    first: float | None = None
    for case in CASES[suite]:
        if case.context > engine.info.context_limit:
            listener.warn(f"{case.name} is left out: the model's context holds {engine.info.context_limit:,} tokens")
            continue
        listener.progress(f"{case.name} with {engine.info.model}")
        try:
            value = median(_rates(engine, case))
        except NotMeasuredError as reason:
            listener.warn(f"{case.name} is left out: {reason}")
            continue
        ratio = None if first is None else value / first
        yield Row(suite, case.name, "tok_s", value, "tok/s", first, ratio, engine.info.isa)
        first = value if first is None else first


def _rates(engine: EngineFace, case: Case) -> list[float]:
    """Tokens per second, a few times over."""
    start_s, rates = time.monotonic(), list[float]()
    rate = _prefill_rate if case.suite == "prefill" else _decode_rate
    while len(rates) < REPEATS and (not rates or time.monotonic() - start_s < CASE_S):
        rates.append(rate(engine, case, len(rates)))
    return rates


def _prefill_rate(engine: EngineFace, case: Case, repeat: int) -> float:
    """Another prompt each time, so that nothing of it is in the cache."""
    seed = 10 * case.num_tokens + repeat
    finished = _answer(engine, prompt_of(engine, case.num_tokens, seed), f"{case.name}-{repeat}", case, seed)
    return _known(finished.prefill_tok_s, case)


def _decode_rate(engine: EngineFace, case: Case, repeat: int) -> float:
    """The same prompt each time: it is read once, and what follows differs with the seed."""
    prompt = prompt_of(engine, case.num_tokens, seed=0)
    for attempt in range(4):  # a model may end its answer early
        finished = _answer(engine, prompt, "decode", case, 10 * repeat + attempt)
        if finished.completion_tokens >= case.num_decoded // 4 or finished.reason == "cancelled":
            return _known(finished.decode_tok_s, case)
    raise NotMeasuredError("the model ends its answers after a few tokens")


def _warm_up(engine: EngineFace) -> None:
    case = Case("decode", 64, 4)
    _answer(engine, prompt_of(engine, case.num_tokens, seed=99), "warm-up", case, 0)


def _answer(engine: EngineFace, prompt: str, session: str, case: Case, seed: int) -> Finished:
    sampling = Sampling(SAMPLING.temperature, SAMPLING.top_p, seed=seed)
    conversation = Conversation((Message("user", prompt),))
    handle = engine.submit(Request(conversation, sampling, case.num_decoded, session=session))
    deadline_s = time.monotonic() + ANSWER_S[case.suite]
    try:
        for event in handle.events():
            if isinstance(event, Failed):
                raise LocalmoeError(event.message, event.hint)
            if isinstance(event, Finished):
                return event
            if time.monotonic() > deadline_s:
                handle.cancel()
    except BaseException:  # nobody waits for the rest
        handle.cancel()
        raise
    raise LocalmoeError("the engine broke off its answer", "run it again; if it stays, please report it")


def _known(rate: float | None, case: Case) -> float:
    if not rate:
        raise NotMeasuredError(f"not measured within {ANSWER_S[case.suite]:.0f} s")
    return rate

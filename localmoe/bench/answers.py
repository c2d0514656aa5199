"""Suites prefill and decode: prompts of a known length, read and continued by the engine."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from localmoe.bench.prompts import prompt_of
from localmoe.bench.rows import Note, Row
from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineFace, Request, Sampling
from localmoe.errors import LocalmoeError
from localmoe.events import Failed, Finished

PREFILL_TOKENS = (512, 2048)
DECODE_TOKENS = (128, 8192)
NUM_DECODED = 64
REPEATS = 3
CASE_S = 100.0  # no further repeat is begun after this
ANSWER_S = 200.0  # an answer is cut off after this; its rate counts all the same
# Tokens as they fall: greedy decoding would circle through a few of them, and their experts stay in caches.
SAMPLING = Sampling(temperature=1.0, top_p=1.0)


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


def measure(engine: EngineFace, suite: str, note: Note) -> Iterator[Row]:
    """The suite's rows. A longer case has the shortest one for a reference."""
    _warm_up(engine)
    first: float | None = None
    for case in CASES[suite]:
        if case.context > engine.info.context_limit:
            note(f"{case.name} is left out: the model's context holds {engine.info.context_limit:,} tokens")
            continue
        note(f"{case.name} with {engine.info.model}")
        value = median(_rates(engine, case))
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
    finished = _answer(engine, prompt_of(engine, case.num_tokens, seed=repeat), f"prefill-{repeat}", 1, repeat)
    return _known(finished.prefill_tok_s, case)


def _decode_rate(engine: EngineFace, case: Case, repeat: int) -> float:
    """The same prompt each time: it is read once, and what follows differs with the seed."""
    prompt = prompt_of(engine, case.num_tokens, seed=0)
    for attempt in range(4):  # a model may end its answer early
        finished = _answer(engine, prompt, "decode", case.num_decoded, 10 * repeat + attempt)
        if finished.completion_tokens >= case.num_decoded // 4:
            return _known(finished.decode_tok_s, case)
    raise LocalmoeError(f"{case.name}: the model ends its answers after a few tokens", "measure with another model")


def _warm_up(engine: EngineFace) -> None:
    _answer(engine, prompt_of(engine, 64, seed=99), "warm-up", 4, 0)


def _answer(engine: EngineFace, prompt: str, session: str, max_tokens: int, seed: int) -> Finished:
    sampling = Sampling(SAMPLING.temperature, SAMPLING.top_p, seed=seed)
    conversation = Conversation((Message("user", prompt),))
    handle = engine.submit(Request(conversation, sampling, max_tokens, session=session))
    deadline_s = time.monotonic() + ANSWER_S
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
        raise LocalmoeError(f"{case.name}: not measured within {ANSWER_S:.0f} s", "measure with a smaller model")
    return rate

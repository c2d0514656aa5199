"""Suites prefill and decode: prompts of a known length, read and continued by the engine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from localmoe.bench.arithmetic import fma_peak
from localmoe.bench.kernel_program import Workers
from localmoe.bench.kernels import make_workers
from localmoe.bench.prompts import prompt_of
from localmoe.bench.rows import Listener, Row, compared
from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineFace, EngineInfo, Request, Sampling
from localmoe.errors import LocalmoeError
from localmoe.events import Failed, Finished
from localmoe.settings import Settings

PREFILL_TOKENS = (512, 2048)
DECODE_TOKENS = (128, 8192)
NUM_DECODED = 64
REPEATS = 5
ROUNDS_S = {"prefill": 180.0, "decode": 240.0}  # no further round is begun after this
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


@dataclass(frozen=True, slots=True)
class Round:
    """What was measured one right after the other: tokens per second of each case, and the cores' FLOP/s then."""

    rates: Mapping[Case, float]
    peak: float | None


CASES = {
    "prefill": tuple(Case("prefill", n, 1) for n in PREFILL_TOKENS),
    "decode": tuple(Case("decode", n, NUM_DECODED) for n in DECODE_TOKENS),
}


def context_for(suites: tuple[str, ...]) -> int:
    """The context that all cases of `suites` fit into; 0 when none needs an engine."""
    return max((case.context for suite in suites for case in CASES.get(suite, ())), default=0)


def measure(engine: EngineFace, suite: str, listener: Listener) -> Iterator[Row]:
    """The suite's rows. The longer case has the shorter one for a reference."""
    warm_up(engine)
    rounds = _rounds(engine, _cases(engine, suite, listener), _workers(engine.info), listener)
    first: Row | None = None
    for case in CASES[suite]:
        if rates := [known.rates[case] for known in rounds if case in known.rates]:
            row = Row(suite, case.name, "tok_s", median(rates), "tok/s", isa=engine.info.isa)
            yield row if first is None else compared(row, first.value, first.case)
            first = first or row
    if suite == "decode":
        yield from added_rows(engine.info, rounds)


def added_rows(info: EngineInfo, rounds: Sequence[Round]) -> Iterator[Row]:
    """What the longer context adds to a step, beside the time that it takes at the FMA peak: lower is better.

    Scores and sums over the latents of the tokens that the longer case has more: nothing else of a step grows.
    """
    short, long = CASES["decode"]
    whole = [known for known in rounds if known.peak and len(known.rates) == len(CASES["decode"])]
    if not whole:
        return
    flops = info.attention_flops * (long.num_tokens - short.num_tokens)
    added_ms = median(1e3 / known.rates[long] - 1e3 / known.rates[short] for known in whole)
    least_ms = median(1e3 * flops / known.peak for known in whole if known.peak)
    row = Row("decode", f"{long.name}-added", "ms", added_ms, "ms", isa=info.isa)
    yield compared(row, least_ms, "attention FLOPs / FMA peak")


def _cases(engine: EngineFace, suite: str, listener: Listener) -> list[Case]:
    """Those that the model's context holds."""
    limit = engine.info.context_limit
    for case in CASES[suite]:
        if case.context > limit:
            listener.warn(f"{case.name} is left out: the model's context holds {limit:,} tokens")
    return [case for case in CASES[suite] if case.context <= limit]


def _rounds(engine: EngineFace, cases: list[Case], workers: Workers | None, listener: Listener) -> list[Round]:
    """All cases in turn, a few times over: whatever else the machine does hits them all."""
    start_s, rounds = time.monotonic(), list[Round]()
    while cases and len(rounds) < REPEATS and (not rounds or time.monotonic() - start_s < ROUNDS_S[cases[0].suite]):
        rates: dict[Case, float] = {}
        for case in cases:
            listener.progress(f"{case.name} with {engine.info.model}")
            try:
                rates[case] = rate(engine, case, len(rounds))
            except NotMeasuredError as reason:
                listener.warn(f"{case.name} is left out{f' of round {len(rounds) + 1}' * bool(rounds)}: {reason}")
        rounds.append(Round(rates, fma_peak(workers) if workers else None))
        cases = [case for case in cases if case in rates]
    return rounds


def _workers(info: EngineInfo) -> Workers | None:
    """As many as the engine's, on its target; None where nothing is computed."""
    return make_workers(Settings(isa=info.isa, threads=info.num_threads)) if info.attention_flops else None


def rate(engine: EngineFace, case: Case, repeat: int) -> float:
    """Tokens per second."""
    return _prefill_rate(engine, case, repeat) if case.suite == "prefill" else _decode_rate(engine, case, repeat)


def _prefill_rate(engine: EngineFace, case: Case, repeat: int) -> float:
    """Another prompt each time, so that nothing of it is in the cache."""
    seed = 10 * case.num_tokens + repeat
    finished = _answer(engine, prompt_of(engine, case.num_tokens, seed), f"{case.name}-{repeat}", case, seed)
    return _known(finished.prefill_tok_s, case)


def _decode_rate(engine: EngineFace, case: Case, repeat: int) -> float:
    """The same prompt each time: it is read once, and what follows differs with the seed."""
    prompt = prompt_of(engine, case.num_tokens, seed=0)
    for attempt in range(4):  # a model may end its answer early
        finished = _answer(engine, prompt, case.name, case, 10 * repeat + attempt)
        if finished.completion_tokens >= case.num_decoded // 4 or finished.reason == "cancelled":
            return _known(finished.decode_tok_s, case)
    raise NotMeasuredError("the model ends its answers after a few tokens")


def warm_up(engine: EngineFace) -> None:
    """A short answer that nobody times."""
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

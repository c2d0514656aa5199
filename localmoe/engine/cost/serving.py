"""How many requests a machine answers within their targets, and what it takes: the share, the batch, the chunk.

Both phases work at once on the same cores. Decode's share must be so large that a step of the batch keeps to the target
for each token while a prompt is read; what is left reads prompts. Larger batches read each weight for more answers, but
ask for a larger share; longer chunks read faster, but a short prompt that comes meanwhile waits for their end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import forecast_decode, forecast_prefill
from localmoe.engine.cost.rates import Rates
from localmoe.model.config import ModelConfig

# Requests as a chat has them: most are short, a few bring a document.
PROMPTS = ((128, 0.8), (2048, 0.2))  # tokens, how many of the requests
ANSWER_TOKENS, CONTEXT_TOKENS = 256, 1024
CHUNKS = (64, 128, 256, 512, 1024, 2048)
NEARLY = 0.8  # of the largest goodput: for that more answers go on at once, and fewer wait for another one's end
FEW = 4  # answers that are made together even where that is slower than anybody asked for
WAIT_SHARE = 0.1  # of the time to the first token, for the end of a chunk of another prompt


@dataclass(frozen=True, slots=True)
class Serving:
    """What was found."""

    batch: int
    share: float  # of the cores' time, that decode's target asks for beside a prompt
    chunk: int  # tokens, while there are other requests
    requests_s: float  # that keep to their targets
    step_s: float  # of the batch, alone
    is_reached: bool  # the targets, by a batch of one at least


@dataclass(frozen=True, slots=True)
class Aims:
    """Seconds to the first token and for each after it, and the largest share that decode may have."""

    ttft_s: float
    tpot_s: float
    most_share: float
    most_batch: int


def serve(rates: Rates, config: ModelConfig, placement: Placement, aims: Aims) -> Serving:
    """Share, batch and chunk of the largest goodput, or nearly; where targets are out of reach, what is quickest."""
    steps = _steps(rates, config, placement, aims.most_batch)
    chunks = _chunks(rates, config, placement)
    found = [s for chunk, read_s in chunks for s in _candidates(steps, chunk, read_s, aims)]
    if found:
        best = max(found, key=lambda s: (s.requests_s, s.chunk))
        return max((s for s in found if s.requests_s >= NEARLY * best.requests_s and s.chunk == best.chunk), key=_batch)
    return _out_of_reach(steps, chunks)


def _batch(serving: Serving) -> int:
    return serving.batch


def _steps(rates: Rates, config: ModelConfig, placement: Placement, most: int) -> list[float]:
    """Seconds of a step of 1, 2, ... answers, alone."""
    context = min(CONTEXT_TOKENS, config.max_position)
    return [forecast_decode(rates, config, placement, context, n).term.seconds for n in range(1, most + 1)]


def _chunks(rates: Rates, config: ModelConfig, placement: Placement) -> list[tuple[int, float]]:
    """Chunks up to the plan's, each with the seconds in which an average request's prompt is read in such ones."""
    sizes = sorted({*(c for c in CHUNKS if c < placement.chunk), placement.chunk})
    return [(chunk, _read_s(rates, config, replace(placement, chunk=chunk))) for chunk in sizes]


def _read_s(rates: Rates, config: ModelConfig, placement: Placement) -> float:
    prompts = ((min(tokens, config.max_position), part) for tokens, part in PROMPTS)
    return sum(part * forecast_prefill(rates, config, placement, tokens).ttft_s for tokens, part in prompts)


def _candidates(steps: Sequence[float], chunk: int, read_s: float, aims: Aims) -> Iterator[Serving]:
    """All batches whose targets can be reached with chunks of `chunk` tokens."""
    token_s = read_s / sum(tokens * part for tokens, part in PROMPTS)
    for batch, step_s in enumerate(steps, start=1):
        share = step_s / aims.tpot_s
        if share > aims.most_share or chunk * token_s / (1 - share) > WAIT_SHARE * aims.ttft_s:
            continue
        answer_s = ANSWER_TOKENS * step_s / batch
        yield Serving(batch, share, chunk, min(1 / (read_s + answer_s), (1 - share) / read_s), step_s, True)


def _out_of_reach(steps: Sequence[float], chunks: Sequence[tuple[int, float]]) -> Serving:
    """A few answers, so that none waits for another one's end, and as many more as take twice the time of one."""
    batch = max(min(FEW, len(steps)), sum(step_s <= 2 * steps[0] for step_s in steps))
    chunk, read_s = min(chunks, key=lambda pair: pair[1])
    step_s = steps[batch - 1]
    return Serving(batch, 0.5, chunk, 1 / (read_s + ANSWER_TOKENS * step_s / batch), step_s, False)

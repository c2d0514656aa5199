"""What to expect of a machine, a model and a plan: TTFT, prefill and decode speed, and when prompts are streamed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localmoe.engine.cost import decode, prefill
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.term import Term
from localmoe.model.config import ModelConfig

PROMPTS = tuple(1024 * n for n in (1, 8, 32, 128))
CONTEXTS = tuple(1024 * n for n in (1, 8, 32))
STREAMS = (1, 2, 4)

Way = Literal["cpu", "cpu+gpu", "stream"]


@dataclass(frozen=True, slots=True)
class PrefillForecast:
    """Reading a prompt."""

    num_tokens: int
    way: Way
    term: Term

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token, which comes out of the prompt's last row."""
        return self.term.seconds

    @property
    def tok_s(self) -> float:
        """Tokens of the prompt a second."""
        return self.num_tokens / self.term.seconds


@dataclass(frozen=True, slots=True)
class DecodeForecast:
    """Making tokens."""

    context: int
    num_streams: int
    term: Term  # one step

    @property
    def tok_s(self) -> float:
        """Tokens a second, all streams together."""
        return self.num_streams / self.term.seconds


@dataclass(frozen=True, slots=True)
class Prediction:
    """All forecasts. `crossover_tokens`: the shortest prompt that is streamed to the GPUs; None: none is."""

    prefill: tuple[PrefillForecast, ...]
    decode: tuple[DecodeForecast, ...]
    crossover_tokens: int | None


def predict(
    rates: Rates,
    config: ModelConfig,
    placement: Placement,
    prompts: Sequence[int] = PROMPTS,
    contexts: Sequence[int] = CONTEXTS,
    streams: Sequence[int] = STREAMS,
) -> Prediction:
    """Forecasts for each prompt and context that the model takes, and each number of streams.

    Raises ValueError where `placement` needs what `rates` do not have, OutOfMemoryError where a GPU is too small.
    """
    fitting = [n for n in contexts if n <= config.max_position]
    return Prediction(
        tuple(forecast_prefill(rates, config, placement, n) for n in prompts if n <= config.max_position),
        tuple(forecast_decode(rates, config, placement, n, k) for n in fitting for k in streams),
        crossover(rates, config, placement) if placement.num_gpus else None,
    )


def forecast_prefill(rates: Rates, config: ModelConfig, placement: Placement, num_tokens: int) -> PrefillForecast:
    """A prompt of `num_tokens` by the faster way."""
    _check(rates, config, placement, num_tokens)
    if not placement.num_gpus:
        way: Way = "cpu" if placement.resident_share == 1 else "stream"
        return PrefillForecast(num_tokens, way, prefill.on_the_cpu(rates, config, placement, num_tokens))
    shared = prefill.with_attention_on_gpu(rates, config, placement, num_tokens)
    streamed = prefill.streamed(rates, config, placement, num_tokens)
    if streamed.seconds <= shared.seconds:
        return PrefillForecast(num_tokens, "stream", streamed)
    return PrefillForecast(num_tokens, "cpu+gpu", shared)


def forecast_decode(
    rates: Rates, config: ModelConfig, placement: Placement, context: int, num_streams: int = 1
) -> DecodeForecast:
    """Steps of `num_streams` streams with `context` cached tokens each."""
    _check(rates, config, placement, min(context, num_streams))
    return DecodeForecast(context, num_streams, decode.step(rates, config, placement, context, num_streams))


def crossover(rates: Rates, config: ModelConfig, placement: Placement) -> int | None:
    """The shortest prompt that streaming to the GPUs reads as fast as the CPU does; None: none that the model takes.

    Streaming starts with the whole model's transfer and grows more slowly, so the two ways cross once.
    """

    def streams(num_tokens: int) -> bool:
        return forecast_prefill(rates, config, placement, num_tokens).way == "stream"

    if not placement.num_gpus:
        raise ValueError("without a GPU there is nothing to stream to")
    low, high = 0, 1
    while not streams(high):
        if high == config.max_position:
            return None
        low, high = high, min(2 * high, config.max_position)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if streams(middle) else (middle, high)
    return high


def _check(rates: Rates, config: ModelConfig, placement: Placement, least: int) -> None:
    if least < 1:
        raise ValueError("a prompt, a context and a number of streams start at 1")
    if placement.num_gpus > len(rates.gpus):
        raise ValueError(f"{rates.machine} has {len(rates.gpus)} GPUs, not {placement.num_gpus}")
    if placement.num_gpus and not config.num_moe_layers:
        raise ValueError("a model without routed experts has nothing to stream")

"""How tokens spread over experts, when each token chooses K of E at random."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from localmoe.model.config import ModelConfig

WIDTH = 9  # standard deviations on each side: what is left out is below 1e-15


def distinct_experts(config: ModelConfig, num_tokens: int) -> float:
    """Experts of a layer that any of the tokens chooses: E (1 - (1 - K/E)^N)."""
    missed = 1 - config.top_k / config.num_experts
    return config.num_experts * (1 - missed**num_tokens)


def over_experts(config: ModelConfig, num_tokens: int, cost: Callable[[int], float]) -> float:
    """Sum over a layer's experts of what `cost` makes of the number of tokens that chose each, on average."""
    low, chances = _binomial(num_tokens, config.top_k / config.num_experts)
    return config.num_experts * sum(chance * cost(low + n) for n, chance in enumerate(chances))


@lru_cache(maxsize=4096)
def tiles(config: ModelConfig, num_tokens: int, tile: int) -> float:
    """Sum over a layer's experts of ceil(tokens / tile), on average."""
    return over_experts(config, num_tokens, lambda n: -(-n // tile))


def typical_counts(config: ModelConfig, num_tokens: int) -> NDArray[np.int64]:
    """[E]: tokens of each of a layer's experts, from few to many: quantiles of what chance gives each."""
    low, chances = _binomial(num_tokens, config.top_k / config.num_experts)
    places = (np.arange(config.num_experts) + 0.5) / config.num_experts
    return low + np.searchsorted(np.cumsum(chances)[:-1], places)


@lru_cache(maxsize=256)
def _binomial(count: int, p: float) -> tuple[int, tuple[float, ...]]:
    """Chances of `low`, `low` + 1, ... successes in `count` trials."""
    if p >= 1:
        return count, (1.0,)
    mean, spread = count * p, WIDTH * math.sqrt(count * p * (1 - p)) + WIDTH
    low, high = max(0, math.floor(mean - spread)), min(count, math.ceil(mean + spread))
    constant = math.lgamma(count + 1)

    def chance(n: int) -> float:
        ways = constant - math.lgamma(n + 1) - math.lgamma(count - n + 1)
        return math.exp(ways + n * math.log(p) + (count - n) * math.log1p(-p))

    return low, tuple(chance(n) for n in range(low, high + 1))

"""Requests that come by chance: one seeded trace, at any rate. Its gaps are of one request a second on average."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SEED = 7
NUM_REQUESTS = 40
SHORT_TOKENS, LONG_TOKENS = 96, 1024
LONG_SHARE = 0.2
LEAST_MADE, MOST_MADE = 12, 48


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `target` is the number of its class of targets."""

    since_s: float
    prompt: int
    answer: int
    target: int


def arrivals(rate: float) -> Iterator[Arrival]:
    """All of them, `rate` a second: Poisson, mostly short prompts, both classes of targets in turn."""
    random = np.random.default_rng(SEED)
    since = np.cumsum(random.exponential(1.0, NUM_REQUESTS)) / rate
    is_long = random.permutation(NUM_REQUESTS) < LONG_SHARE * NUM_REQUESTS
    answers = random.integers(LEAST_MADE, MOST_MADE + 1, NUM_REQUESTS)
    classes = random.permutation(NUM_REQUESTS) % 2
    for n in range(NUM_REQUESTS):
        prompt = LONG_TOKENS if is_long[n] else SHORT_TOKENS
        yield Arrival(float(since[n]), prompt, int(answers[n]), int(classes[n]))

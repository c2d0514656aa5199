"""The choice of the next token from its logits. numpy only; a few milliseconds at a vocabulary of 129,280."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.errors import VerificationError


class SamplingValues(Protocol):
    """What a request says about sampling; the engine's `Sampling` is one."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def seed(self) -> int | None: ...


class Sampler:
    """One request's choices: the same seed and logits give the same tokens."""

    def __init__(self, sampling: SamplingValues) -> None:
        self._sampling = sampling
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))

    def pick(self, logits: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32] = ()) -> int:
        """The next token's id from logits [V]; `history` is prompt and output so far.

        Order as in transformers: penalty, temperature, then top-p and min-p, both of the whole distribution.
        VerificationError when the logits are not numbers.
        """
        s = self._sampling
        logits = penalised(logits, history, s.repetition_penalty)
        best = int(logits.argmax())  # a NaN counts as the largest
        if not np.isfinite(logits[best]):
            raise VerificationError(
                f"the model's output is not a number (logit {best} is {logits[best]})",
                "the weights may be damaged, or a kernel is wrong: try LOCALMOE_ISA=scalar",
            )
        if s.temperature == 0:
            return best
        with np.errstate(over="ignore", under="ignore"):  # a tiny temperature sends all but the best to exp(-inf)
            weights = np.exp((logits - logits[best]) / np.float32(s.temperature))
        if s.top_p == 1 and s.min_p == 0:
            return self._draw(weights)
        chosen = likeliest(weights, s.top_p) if s.top_p < 1 else np.arange(len(weights))
        chosen = chosen[weights[chosen] >= s.min_p]  # the best has weight 1
        return int(chosen[self._draw(weights[chosen])])

    def _draw(self, weights: NDArray[np.float32]) -> int:
        sums = np.cumsum(weights, dtype=np.float64)
        place = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        return min(int(place), len(weights) - 1)


def penalised(
    logits: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32], penalty: float
) -> NDArray[np.float32]:
    """Logits with those of tokens seen before made less likely (CTRL, section 4.1); 1 is off."""
    if penalty == 1 or len(history) == 0:
        return logits
    seen = np.unique(np.asarray(history))
    logits = logits.copy()
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return logits


def likeliest(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """The fewest ids, in their order, that hold `top_p` of all weight; of equals the first ones.

    Those below (1 - top_p) / V of the weight hold less than 1 - top_p together, so none of them is needed. Of the rest
    the weights are sorted, which numpy does many at a time, and not the ids.
    """
    total = weights.sum(dtype=np.float64)
    ids = np.flatnonzero(weights >= (1 - top_p) / len(weights) * total)
    weights = weights[ids]
    falling = np.sort(weights)[::-1]
    sums = np.cumsum(falling, dtype=np.float64)
    count = min(int(np.searchsorted(sums, top_p * total)) + 1, len(ids))
    least = falling[count - 1]
    above = weights > least
    equal = np.flatnonzero(weights == least)[: count - int(above.sum())]
    above[equal] = True
    return ids[above]

"""Which experts of a layer are moved to a device, and which the CPU computes where they rest: both are to end together.

The device's experts come one after the other over its link, each computed while the next one comes; the CPU reads its
own in memory meanwhile. Moving an expert takes as long for one token as for a hundred, so those with many go.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SplitRates:
    """Measured seconds, for an expert of this model."""

    move_s: float  # over the link
    device_expert_s: float  # launches of its group
    device_token_s: float  # each of its tokens
    cpu_expert_s: float  # its weights, from memory
    cpu_token_s: float  # each of its tokens


@dataclass(frozen=True, slots=True)
class Split:
    """`device`: the experts that are moved, in this order. The seconds are predictions."""

    device: tuple[int, ...]
    device_s: float
    cpu_s: float

    @property
    def seconds(self) -> float:
        """Until both have ended."""
        return max(self.device_s, self.cpu_s)


def split(counts: NDArray[np.int64], rates: SplitRates) -> Split:
    """`counts` [E]: tokens of each expert. Experts without any go nowhere.

    The device takes the first n experts by their tokens, with the n that ends soonest; of equals the smallest. For a
    given n no other choice leaves the CPU less, so a better one exists only where the device's own time for tokens
    decides. Largest first is also the order in which a device that loads and computes ends soonest (Johnson's rule).
    """
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    tokens = counts[order].astype(np.float64)
    device_s = device_seconds(tokens, rates)
    cpu_s = cpu_seconds(tokens, rates)
    best = int(np.maximum(device_s, cpu_s).argmin())
    return Split(tuple(int(e) for e in order[:best]), float(device_s[best]), float(cpu_s[best]))


def device_seconds(tokens: NDArray[np.float64], rates: SplitRates) -> NDArray[np.float64]:
    """[n + 1]: until the device has moved and computed the first 0 to n experts."""
    work = rates.device_expert_s + rates.device_token_s * tokens
    done = np.cumsum(work)
    arrived = rates.move_s * np.arange(1, len(tokens) + 1)
    # An expert ends when it and all behind some arrival are computed: the latest such arrival decides.
    return np.concatenate([[0.0], done + np.maximum.accumulate(arrived - (done - work))])


def cpu_seconds(tokens: NDArray[np.float64], rates: SplitRates) -> NDArray[np.float64]:
    """[n + 1]: for all experts but the first 0 to n."""
    work = rates.cpu_expert_s + rates.cpu_token_s * tokens
    return np.concatenate([np.cumsum(work[::-1])[::-1], [0.0]])

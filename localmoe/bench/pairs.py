"""Two things measured in turn, so that whatever else the machine does hits both."""

from collections.abc import Callable
from statistics import median

Side = Callable[[int], float]  # from the number of a pair to a rate


def in_turn(ours: Side, reference: Side, num_pairs: int) -> tuple[float, float, float]:
    """Medians of both rates, and of the pairs' ratios; a pair to warm up does not count."""
    pairs = [(ours(turn), reference(turn)) for turn in range(num_pairs + 1)][1:]
    value, other = (median(side) for side in zip(*pairs, strict=True))
    return value, other, median(a / b for a, b in pairs)

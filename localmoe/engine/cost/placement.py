"""What a plan decided, as far as it decides about time."""

from collections.abc import Iterable
from dataclasses import dataclass

Runs = tuple[tuple[int, int], ...]  # (tokens at once, how many times)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the parts of a model are computed, and what DRAM holds. ValueError for what cannot be.

    Without GPUs everything runs on the CPU. With one, attention, dense layers and shared experts run on it, and the
    routed experts on the CPU; long prompts stream them to the GPUs instead, each of which takes its part.
    """

    num_gpus: int = 0
    chunk: int = 512  # tokens that the CPU takes at once
    cache_element_bytes: int = 4  # of the latent cache in DRAM; on a GPU it is BF16
    resident_share: float = 1.0  # of the routed experts in DRAM; the others come from disk each time
    group_experts: int = 8  # in one transfer to a GPU

    def __post_init__(self) -> None:
        if self.num_gpus < 0 or min(self.chunk, self.cache_element_bytes, self.group_experts) < 1:
            raise ValueError(f"counts must be above 0: {self}")
        if not 0 <= self.resident_share <= 1:
            raise ValueError(f"resident_share must be within 0 and 1, not {self.resident_share}")


def chunks(num_tokens: int, chunk: int) -> Runs:
    """A prompt in pieces of `chunk`, and what is left."""
    whole, left = divmod(num_tokens, chunk)
    return tuple((tokens, count) for tokens, count in ((chunk, whole), (left, 1)) if tokens and count)


def repeat(runs: Runs, count: int) -> Runs:
    """Every run `count` times: once for each of so many layers."""
    return tuple((tokens, times * count) for tokens, times in runs)


def num_runs(runs: Iterable[tuple[int, int]]) -> int:
    """How many there are."""
    return sum(times for _, times in runs)

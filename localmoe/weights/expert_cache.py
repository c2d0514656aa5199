"""Some of each layer's routed experts rest in memory for good; the others are read from the checkpoint each time.

Which ones are chosen most is not known when a model opens, so the first of each layer stay.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.copying import memory_steps
from localmoe.devices.device import Step
from localmoe.weights.expert_source import FileExperts
from localmoe.weights.store import Experts, Store

Bytes = NDArray[np.uint8]


def resident_counts(num_experts: Sequence[int], share: float) -> list[int]:
    """How many of each layer's experts stay in memory: in all no more than `share` of them, in each about as many."""
    left = int(share * sum(num_experts) + 1e-9)
    counts = [0] * len(num_experts)
    for done, (layer, count) in enumerate(sorted(enumerate(num_experts), key=lambda pair: pair[1])):
        counts[layer] = min(count, -(-left // (len(num_experts) - done)))
        left -= counts[layer]
    return counts


class CachedExperts:
    """expert_source.ExpertSource: the first ones in place, in `store`, the others from `files`."""

    def __init__(self, files: FileExperts, store: Store) -> None:
        self._files = files
        self._resident: list[Bytes] = []  # of each layer: [experts, stride]
        described = files.described()
        for prefix, experts in described.items():
            found = store.experts(prefix) if store.has_experts(prefix) else experts
            (part,) = found.parts
            self._resident.append(part.blob)
        store.stream(described)

    def experts(self, layer: int) -> Experts:
        """As ExpertSource says."""
        return self._files.experts(layer)

    def num_resident(self, layer: int) -> int:
        """Experts of the layer that rest in memory: the first ones."""
        return len(self._resident[layer])

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """As ExpertSource says: where all of them rest."""
        if first + count > self.num_resident(layer):
            return None
        return [self._resident[layer][first : first + count].reshape(-1)]

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """As ExpertSource says."""
        blob = self._resident[layer]
        num_here = min(count, max(0, len(blob) - first))
        split = num_here * blob.shape[1]
        here: list[Step] = list(memory_steps(slot[:split], blob[first : first + num_here].reshape(-1)))
        if num_here == count:
            return here
        return [*here, *self._files.steps(layer, first + num_here, count - num_here, slot[split:])]

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

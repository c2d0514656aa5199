"""Some of each layer's routed experts rest in memory; the others are read from the checkpoint each time.

Which ones are worth it shows when prompts are read: all experts pass then, and those that tokens chose most stay. Once
enough tokens were seen the set is frozen. Nothing rests when a model opens, so nothing is read in vain.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Step
from localmoe.errors import CancelledError
from localmoe.weights.arena import Arena
from localmoe.weights.expert_files import FileExperts
from localmoe.weights.store import Experts

LOOK_S = 0.02  # how often the cancel flag is looked at while another pass is waited for
FROZEN_AFTER = 2048  # tokens: from then on the set stays

Bytes = NDArray[np.uint8]


def resident_counts(num_experts: Sequence[int], share: float) -> list[int]:
    """How many of each layer's experts stay in memory: in all no more than `share` of them, in each about as many."""
    left = int(share * sum(num_experts) + 1e-9)
    counts = [0] * len(num_experts)
    for done, (layer, count) in enumerate(sorted(enumerate(num_experts), key=lambda pair: pair[1])):
        counts[layer] = min(count, -(-left // (len(num_experts) - done)))
        left -= counts[layer]
    return counts


class _Layer:
    """Rows of one layer's experts, and who has them."""

    def __init__(self, blob: Bytes, num_experts: int) -> None:
        self.blob = blob  # [rows, stride]
        self.places: dict[int, int] = {}  # expert: row
        self.free = list(range(len(blob)))[::-1]
        self.counts = np.zeros(num_experts, np.int64)
        self.lock = threading.Lock()

    def view(self, expert: int) -> Bytes | None:
        """Where it rests."""
        row = self.places.get(expert)
        return None if row is None else self.blob[row]

    def put(self, expert: int, row: int, data: Bytes) -> None:
        """From now on the expert rests there."""
        np.copyto(self.blob[row], data[: self.blob.shape[1]])
        self.places[expert] = row

    def take_row(self, wanted: set[int], end: int) -> int | None:
        """A free one; else that of the expert before `end` that is chosen least, if it is none of `wanted`."""
        if self.free:
            return self.free.pop()
        cold = [expert for expert in self.places if expert < end and expert not in wanted]
        return self.places.pop(min(cold, key=lambda e: int(self.counts[e]))) if cold else None

    def wanted(self) -> set[int]:
        """As many as have room, those chosen most."""
        return set(np.argsort(-self.counts, kind="stable")[: len(self.blob)].tolist())


class CachedExperts:
    """expert_source.KeptExperts: up to `counts[n]` experts of layer n in memory, the others from `files`."""

    def __init__(self, files: FileExperts, counts: Sequence[int]) -> None:
        self._files = files
        strides = [files.stride(n) for n in range(len(counts))]
        self._arena = Arena(max(1, sum(count * stride for count, stride in zip(counts, strides, strict=True))))
        self._arena.populate()
        self._layers: list[_Layer] = []
        at = 0
        for n, (count, stride) in enumerate(zip(counts, strides, strict=True)):
            blob = self._arena.typed(at, (count, stride), np.uint8)
            self._layers.append(_Layer(blob, files.experts(n).num_experts))
            at += count * stride
        self._is_frozen = False
        self._num_tokens = 0  # seen so far
        self._pass_lock = threading.Lock()

    def experts(self, layer: int) -> Experts:
        """As ExpertSource says."""
        return self._files.experts(layer)

    def resident(self, layer: int) -> list[int]:
        """The layer's experts that rest in memory, in order."""
        return sorted(self._layers[layer].places)

    def num_rows(self, layer: int) -> int:
        """How many may."""
        return len(self._layers[layer].blob)

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """As ExpertSource says: where all of them rest."""
        found = [self._layers[layer].view(expert) for expert in range(first, first + count)]
        views = [view for view in found if view is not None]
        return views if len(views) == count else None

    def views(self, layer: int, first: int, count: int, slot: Bytes) -> list[Bytes]:
        """As ExpertSource says."""
        found = self._files.views(layer, first, count, slot)
        for n in range(count):
            here = self._layers[layer].view(first + n)
            found[n] = found[n] if here is None else here
        return found

    def blobs(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """None: what rests is computed in place, and the others come from files."""

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """As ExpertSource says."""
        room = self._files.experts(layer).parts[0].blob.shape[1]
        found: list[Step] = []
        for start, stop in self._missing(layer, first, count):
            found += self._files.steps(layer, start, stop - start, slot[(start - first) * room :])
        return found

    def count(self, layer: int, chosen: NDArray[np.int32]) -> None:
        """As KeptExperts says."""
        found = self._layers[layer]
        with found.lock:
            found.counts += np.bincount(chosen.ravel(), minlength=len(found.counts))
            self._num_tokens += len(chosen) if layer == 0 else 0

    def reading(self, layer: int) -> AbstractContextManager[Any]:
        """As KeptExperts says."""
        return self._layers[layer].lock

    def keep(self, layer: int, expert: int, data: Bytes) -> None:
        """As KeptExperts says."""
        found = self._layers[layer]
        if found.free and expert not in found.places:
            found.put(expert, found.free.pop(), data)

    @contextmanager
    def a_pass(self, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Around a pass of all experts. Until the set is frozen only one runs at a time: each may change it."""
        if self._is_frozen:
            yield
            return
        while not self._pass_lock.acquire(timeout=LOOK_S):
            if cancelled():
                raise CancelledError("The run was cancelled.")
        try:
            yield
            self._is_frozen = self._num_tokens >= FROZEN_AFTER
        finally:
            self._pass_lock.release()

    def passes(self, layer: int, first: int, data: Sequence[Bytes]) -> None:
        """Experts from `first` on lie in `data`; they and those before them were computed. Those chosen most stay."""
        found = self._layers[layer]
        if self._is_frozen or not len(found.blob):
            return
        with found.lock:
            wanted = found.wanted()
            for expert, view in enumerate(data, first):
                if expert in wanted and expert not in found.places:
                    row = found.take_row(wanted, first + len(data))
                    if row is not None:
                        found.put(expert, row, view)

    def close(self) -> None:
        """Closes the files, and lets go of the memory."""
        self._files.close()
        self._layers = []

    def _missing(self, layer: int, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Runs of the layer's experts that do not rest."""
        places, start = self._layers[layer].places, first
        for expert in range(first, first + count + 1):
            if expert == first + count or expert in places:
                if start < expert:
                    yield start, expert
                start = expert + 1

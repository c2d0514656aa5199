"""Where groups of experts are copied from: memory, or the checkpoint's files. In a slot they lie as in the store.

A slot holds, for each part of the layer's experts, the group's experts one after the other at the part's stride.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.copying import memory_steps
from localmoe.devices.device import Step
from localmoe.hub.checkpoint import Checkpoint, TensorInfo
from localmoe.weights.layout import ExpertsLayout, Span, expert_of, plan_layout
from localmoe.weights.pieces import BLOCK_BYTES, Piece, cut
from localmoe.weights.place import place
from localmoe.weights.sources import Source
from localmoe.weights.store import ExpertPart, Experts

PIECE_BYTES = 4 << 20

Bytes = NDArray[np.uint8]


class ExpertSource(Protocol):
    """The routed experts of all layers that have some, numbered from 0."""

    def experts(self, layer: int) -> Experts:
        """Their number, and where matrices lie in an expert's bytes."""
        ...

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """Each part's bytes of experts [first, first + count), where they are computed in place; None: in a slot."""
        ...

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """The copy of experts [first, first + count) into `slot`, which has room for them."""
        ...


def group_bytes(experts: Experts, count: int) -> int:
    """Of a slot that holds `count` of them."""
    return count * sum(part.blob.shape[1] for part in experts.parts)


def group_views(experts: Experts, count: int, slot: Bytes) -> list[Bytes]:
    """Each part's bytes in a slot that holds `count` experts."""
    views, at = [], 0
    for part in experts.parts:
        nbytes = count * part.blob.shape[1]
        views.append(slot[at : at + nbytes])
        at += nbytes
    return views


class MemoryExperts:
    """Copies from the one copy in memory."""

    def __init__(self, layers: Sequence[Experts]) -> None:
        self._layers = layers

    def experts(self, layer: int) -> Experts:
        """As ExpertSource says."""
        return self._layers[layer]

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """None: as for a device that the system's memory is far from."""

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """As ExpertSource says."""
        experts = self._layers[layer]
        found: list[Step] = []
        for part, view in zip(experts.parts, group_views(experts, count, slot), strict=True):
            found += memory_steps(view, part.blob[first : first + count].reshape(-1))
        return found


class FileExperts:
    """Reads from the checkpoint's files, past the page cache where their filesystem allows it.

    Values are looked at as when weights are loaded: a bad one is a CheckpointError that names tensor and byte.
    """

    def __init__(self, checkpoint: Checkpoint, prefixes: Sequence[str], *, direct: bool = True) -> None:
        self._layers = [_Layer.of(prefix, checkpoint.tensors.values()) for prefix in prefixes]
        files = sorted({t.file for layer in self._layers for ts in layer.tensors for t in ts})
        self._sources: dict[Path, Source] = {}
        with ExitStack() as stack:
            for file in files:
                self._sources[file] = Source(file, direct=direct)
                stack.callback(self._sources[file].close)
            self._open = stack.pop_all()

    @property
    def is_direct(self) -> bool:
        """Whether all was read past the page cache so far."""
        return all(source.is_direct for source in self._sources.values())

    def experts(self, layer: int) -> Experts:
        """As ExpertSource says."""
        return self._layers[layer].experts

    def described(self) -> Mapping[str, Experts]:
        """All layers by prefix, for Store.stream."""
        return {layer.prefix: layer.experts for layer in self._layers}

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """None: nothing rests in memory."""

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """As ExpertSource says."""
        found = self._layers[layer]
        target = _Slot(slot, found.layout, first)
        tensors = (tensor for e in range(first, first + count) for tensor in found.tensors[e])
        return [_FileStep(self._sources[p.file], p, target) for p in cut(tensors, PIECE_BYTES)]

    def close(self) -> None:
        """Closes the files."""
        self._open.close()


@dataclass(frozen=True)
class _Layer:
    prefix: str
    layout: ExpertsLayout
    experts: Experts
    tensors: tuple[tuple[TensorInfo, ...], ...]  # of each expert

    @classmethod
    def of(cls, prefix: str, tensors: Iterable[TensorInfo]) -> "_Layer":
        by_expert: dict[int, list[TensorInfo]] = {}
        for tensor in tensors:
            if tensor.name.startswith(prefix + ".") and (found := expert_of(tensor.name)):
                by_expert.setdefault(found[1], []).append(tensor)
        layout = plan_layout(t for ts in by_expert.values() for t in ts).experts[prefix]
        parts = tuple(
            ExpertPart(np.empty((0, part.stride), np.uint8), part.gate, part.up, part.down) for part in layout.parts
        )
        ordered = tuple(tuple(by_expert[e]) for e in range(layout.num_experts))
        return cls(prefix, layout, Experts(layout.num_experts, parts), ordered)


class _Slot:
    """A slot as place() knows an arena and its layout: experts from `first` on begin at its start."""

    def __init__(self, slot: Bytes, layout: ExpertsLayout, first: int) -> None:
        self.places: dict[str, int] = {}
        self._slot = slot
        (part,) = layout.parts
        self._layout = replace(layout, parts=(replace(part, offset=-first * part.stride),))

    def view(self, offset: int, nbytes: int) -> Bytes:
        assert 0 <= offset <= offset + nbytes <= len(self._slot), "behind the slot"
        return self._slot[offset : offset + nbytes]

    def spans(self, name: str) -> Iterable[Span]:
        found = expert_of(name)
        assert found is not None
        _, expert, matrix, is_scale = found
        return self._layout.spans(expert, matrix, scales=is_scale)


class _FileStep:
    """One piece of a file on its way into a slot."""

    def __init__(self, source: Source, piece: Piece, target: _Slot) -> None:
        self._source = source
        self._piece = piece
        self._target = target
        self.nbytes = piece.wanted_bytes
        self.buffer_bytes = PIECE_BYTES + BLOCK_BYTES

    def fetch(self, buffer: Bytes) -> None:
        self._source.read(buffer, self._piece.start, self._piece.stop)

    def place(self, buffer: Bytes) -> None:
        place(self._target, self._target, self._piece, buffer)

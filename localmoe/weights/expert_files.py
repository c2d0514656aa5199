"""Experts out of the checkpoint's files, straight to where they are computed.

Where an expert's matrices follow each other in a file as they do in memory, one range of it is read right into the
slot, past the page cache: nothing is copied by the CPU. For that an expert's place in a slot begins as far behind a
block's start as in the file, and what the range's first and last block have beside it falls into room to spare. Scales
lie elsewhere in files; they, and experts that are stored in another order, pass through a bounce buffer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Step
from localmoe.hub.checkpoint import Checkpoint, TensorInfo
from localmoe.weights.layout import SCALE_SUFFIX, ExpertsLayout, Span, expert_of, plan_layout
from localmoe.weights.pieces import BLOCK_BYTES, Piece, cut
from localmoe.weights.place import look_at, place
from localmoe.weights.sources import Source
from localmoe.weights.store import ExpertPart, Experts

PIECE_BYTES = 4 << 20  # through a bounce buffer
RANGE_BYTES = 8 << 20  # read in place in one go
SPARE_BYTES = 2 * BLOCK_BYTES  # of each expert in a slot

Bytes = NDArray[np.uint8]


def room_bytes(expert_bytes: int) -> int:
    """What an expert takes in a slot that it is read into."""
    return -(-expert_bytes // BLOCK_BYTES) * BLOCK_BYTES + SPARE_BYTES


class FileExperts:
    """expert_source.ExpertSource that reads from files, past the page cache where their filesystem allows it.

    Values are looked at when they are read for the first time: a bad one is a CheckpointError that names tensor and
    byte.
    """

    def __init__(self, checkpoint: Checkpoint, prefixes: Sequence[str], *, direct: bool = True) -> None:
        self._layers = [_Layer.of(prefix, checkpoint.tensors.values()) for prefix in prefixes]
        self._looked_at: set[tuple[Path, int]] = set()  # ranges, by their starts
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

    def stride(self, layer: int) -> int:
        """Bytes of one of the layer's experts where it rests."""
        return self._layers[layer].layout.parts[0].stride

    def described(self) -> Mapping[str, Experts]:
        """All layers by prefix, for Store.stream."""
        return {layer.prefix: layer.experts for layer in self._layers}

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """None: nothing rests in memory."""

    def blobs(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """None: nothing is copied from memory."""

    def views(self, layer: int, first: int, count: int, slot: Bytes) -> list[Bytes]:
        """As ExpertSource says."""
        room = _Room(slot, self._layers[layer], first, count)
        return [room.of(expert) for expert in range(first, first + count)]

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """As ExpertSource says."""
        found = self._layers[layer]
        room = _Room(slot, found, first, count)
        steps: list[Step] = []
        others: list[TensorInfo] = []
        for expert in range(first, first + count):
            if room.takes_ranges and found.ranges[expert]:
                steps += self._ranges(found, expert, room)
            else:
                others += found.tensors[expert]
        return [*steps, *(_Pieces([(self._sources[p.file], p)], room) for p in cut(others, PIECE_BYTES))]

    def close(self) -> None:
        """Closes the files."""
        self._open.close()

    def _ranges(self, layer: "_Layer", expert: int, room: "_Room") -> Iterator[Step]:
        """The expert's weights in place, and its scales with the last of them, whose last block may reach there."""
        span = layer.ranges[expert]
        assert span is not None
        weights = [t for t in layer.tensors[expert] if not t.name.endswith(SCALE_SUFFIX)]
        scales = [t for t in layer.tensors[expert] if t.name.endswith(SCALE_SUFFIX)]
        edges = span.edges()
        for start, stop in edges:
            is_last = stop == edges[-1][1]
            pieces = [(self._sources[p.file], p) for p in cut(scales, PIECE_BYTES)] if is_last else []
            parts = [(t, max(start, t.start), min(stop, t.stop)) for t in weights]
            range_ = _Range(self._sources[span.file], start // BLOCK_BYTES * BLOCK_BYTES, stop, parts, span.start)
            yield _InPlace(range_, _Pieces(pieces, room), room.whole(expert), self._looked_at)


@dataclass(frozen=True)
class _Whole:
    """An expert's weights in one range of a file, in the order and at the distances that they have in memory."""

    file: Path
    start: int
    stop: int

    @classmethod
    def of(cls, expert: int, tensors: Iterable[TensorInfo], layout: ExpertsLayout) -> "_Whole | None":
        """None where they lie otherwise."""
        found, stop = set(), 0
        for tensor in tensors:
            name = expert_of(tensor.name)
            assert name is not None
            if not name[3]:
                found.add((tensor.file, tensor.start - layout.parts[0].placement(name[2]).offset))
                stop = max(stop, tensor.stop)
        (file, start), *others = found
        return None if others or start % 4 else cls(file, start, stop)  # scales behind are floats

    def edges(self) -> list[tuple[int, int]]:
        """[start, stop) of about equal ranges, cut between blocks."""
        count = -(-(self.stop - self.start) // RANGE_BYTES)
        inner = [(self.start + n * (self.stop - self.start) // count) for n in range(1, count)]
        cuts = [self.start, *(at // BLOCK_BYTES * BLOCK_BYTES for at in inner), self.stop]
        return list(pairwise(cuts))


@dataclass(frozen=True)
class _Layer:
    prefix: str
    layout: ExpertsLayout
    experts: Experts
    tensors: tuple[tuple[TensorInfo, ...], ...]  # of each expert
    ranges: tuple[_Whole | None, ...]  # of each expert

    @classmethod
    def of(cls, prefix: str, tensors: Iterable[TensorInfo]) -> "_Layer":
        by_expert: dict[int, list[TensorInfo]] = {}
        for tensor in tensors:
            if tensor.name.startswith(prefix + ".") and (found := expert_of(tensor.name)):
                by_expert.setdefault(found[1], []).append(tensor)
        layout = plan_layout(t for ts in by_expert.values() for t in ts).experts[prefix]
        (part,) = layout.parts
        stride = room_bytes(part.stride)
        parts = (ExpertPart(np.empty((0, stride), np.uint8), part.gate, part.up, part.down),)
        ordered = tuple(tuple(by_expert[e]) for e in range(layout.num_experts))
        ranges = tuple(_Whole.of(e, ts, layout) for e, ts in enumerate(ordered))
        return cls(prefix, layout, Experts(layout.num_experts, parts), ordered, ranges)


class _Room:
    """A slot with experts [first, first + count), as place() knows an arena and its layout."""

    def __init__(self, slot: Bytes, layer: _Layer, first: int, count: int) -> None:
        self.places: dict[str, int] = {}
        self._slot = slot
        self._layer = layer
        self._first = first
        self._stride = layer.experts.parts[0].blob.shape[1]
        assert count * self._stride <= len(slot), "the slot is too small"

    @property
    def takes_ranges(self) -> bool:
        """Direct reads land on blocks only."""
        return self._slot.ctypes.data % BLOCK_BYTES == 0

    def of(self, expert: int) -> Bytes:
        """The expert's bytes."""
        return self._slot[self._start(expert) : (expert - self._first + 1) * self._stride]

    def whole(self, expert: int) -> Bytes:
        """The same and what is before it, from a block's start on."""
        return self._slot[self._start(expert) // BLOCK_BYTES * BLOCK_BYTES : (expert - self._first + 1) * self._stride]

    def view(self, offset: int, nbytes: int) -> Bytes:
        assert 0 <= offset <= offset + nbytes <= len(self._slot), "behind the slot"
        return self._slot[offset : offset + nbytes]

    def spans(self, name: str) -> Iterable[Span]:
        found = expert_of(name)
        assert found is not None
        _, expert, matrix, is_scale = found
        (part,) = self._layer.layout.parts
        here = replace(part, offset=self._start(expert) - expert * part.stride)
        return replace(self._layer.layout, parts=(here,)).spans(expert, matrix, scales=is_scale)

    def _start(self, expert: int) -> int:
        span = self._layer.ranges[expert] if self.takes_ranges else None
        return (expert - self._first) * self._stride + (span.start % BLOCK_BYTES if span else 0)


class _Pieces:
    """Some pieces of files on their way into a slot, through a bounce buffer."""

    in_place = False

    def __init__(self, pieces: Sequence[tuple[Source, Piece]], room: _Room) -> None:
        self._pieces = pieces
        self._room = room
        self.nbytes = sum(piece.wanted_bytes for _, piece in pieces)
        self.buffer_bytes = sum(_buffer_bytes(piece) for _, piece in pieces)

    def fetch(self, buffer: Bytes) -> None:
        for (source, piece), room in self._in(buffer):
            source.read(room, piece.start, piece.stop)

    def place(self, buffer: Bytes) -> None:
        for (_, piece), room in self._in(buffer):
            place(self._room, self._room, piece, room)

    def _in(self, buffer: Bytes) -> Iterator[tuple[tuple[Source, Piece], Bytes]]:
        at = 0
        for pair in self._pieces:
            yield pair, buffer[at:]
            at += _buffer_bytes(pair[1])


def _buffer_bytes(piece: Piece) -> int:
    return -(-(piece.stop - piece.start) // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True)
class _Range:
    """[start, stop) of a file, from a block's start; the parts of tensors in it; where the expert begins."""

    source: Source
    start: int
    stop: int
    parts: Sequence[tuple[TensorInfo, int, int]]
    expert_start: int


class _InPlace:
    """A range of a file that is read to where it is computed, and pieces that come after it."""

    in_place = True

    def __init__(self, range_: _Range, then: _Pieces, room: Bytes, looked_at: set[tuple[Path, int]]) -> None:
        self._range = range_
        self._then = then
        base = range_.expert_start // BLOCK_BYTES * BLOCK_BYTES  # what the room begins with
        self._room = room[range_.start - base :]
        self._looked_at = looked_at
        self.nbytes = sum(max(0, stop - start) for _, start, stop in range_.parts) + then.nbytes
        self.buffer_bytes = then.buffer_bytes

    def fetch(self, buffer: Bytes) -> None:
        self._range.source.read(self._room, self._range.start, self._range.stop)
        self._then.fetch(buffer)

    def place(self, buffer: Bytes) -> None:
        self._look()
        self._then.place(buffer)

    def _look(self) -> None:
        key = (self._range.source.path, self._range.start)
        if key in self._looked_at:
            return
        for tensor, start, stop in self._range.parts:
            if start < stop:
                look_at(tensor, start, self._room[start - self._range.start : stop - self._range.start])
        self._looked_at.add(key)

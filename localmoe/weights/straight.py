"""Pieces that one native call reads and puts into place: what is usual, and quick. The rest is left to others."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.weights.layout import is_vector
from localmoe.weights.pieces import Part, Piece
from localmoe.weights.place import Places, kind_of
from localmoe.weights.sources import READ_BYTES, Source

KINDS = ("fp8", "bf16", "f32", "scale")  # as native code counts them


class Memory(Protocol):
    """An arena."""

    nbytes: int

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]: ...


class Straight:
    """From files to `memory`, where `layout` has them."""

    def __init__(self, memory: Memory, layout: Places) -> None:
        self._room = memory.view(0, memory.nbytes)
        self._layout = layout

    def read(self, source: Source, piece: Piece, buffer: NDArray[np.uint8], gate: native.Gate) -> bool:
        """Whether all of `piece` is in place; if not, part of it may be."""
        if not source.is_direct or any(is_vector(part.tensor) for part in piece.parts):
            return False
        rows = [row for part in piece.parts for row in self._rows(part)]
        parts = np.asarray(rows, np.int64).reshape(-1, 4)
        return native.read_values(source.fd, piece.start, piece.stop, parts, self._room, buffer[:READ_BYTES], gate)

    def _rows(self, part: Part) -> list[tuple[int, int, int, int]]:
        """What goes to which place, in the file's order."""
        tensor, kind = part.tensor, KINDS.index(kind_of(part.tensor))
        rows = []
        for span in self._layout.spans(tensor.name):
            start, stop = max(part.start, tensor.start + span.start), min(part.stop, tensor.start + span.stop)
            if start < stop:
                rows.append((start, stop, span.offset + start - tensor.start - span.start, kind))
        return sorted(rows)

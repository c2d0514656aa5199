"""What is read in one go: pieces of files on a fixed grid, each with the parts of tensors that it brings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from localmoe.hub.checkpoint import TensorInfo

BLOCK_BYTES = 4096  # what direct reads begin, end and land on
ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class Part:
    """Whole elements of a tensor: [start, stop) of its file."""

    tensor: TensorInfo
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Piece:
    """[start, stop) of `file`; it begins on a block."""

    file: Path
    start: int
    stop: int
    parts: tuple[Part, ...]

    @property
    def wanted_bytes(self) -> int:
        """Bytes that tensors own."""
        return sum(part.stop - part.start for part in self.parts)


def cut(tensors: Iterable[TensorInfo], piece_bytes: int) -> Iterator[Piece]:
    """All of `tensors` in the order of the files. Bytes that no tensor owns are read only between two that are close.

    No byte is read twice, but for the block in which an element lies across the end of a piece: it is checked, and so
    it comes as a whole, with the piece that it begins in.
    """
    assert piece_bytes % BLOCK_BYTES == 0
    ordered = sorted(tensors, key=lambda t: (str(t.file), t.start))
    parts = (part for tensor in ordered for part in _parts(tensor, piece_bytes))
    for (file, _), group in groupby(parts, key=lambda p: (p.tensor.file, p.start // piece_bytes)):
        together = tuple(group)
        start = together[0].start // BLOCK_BYTES * BLOCK_BYTES
        yield Piece(file, start, together[-1].stop, together)


def _parts(tensor: TensorInfo, piece_bytes: int) -> Iterator[Part]:
    """`tensor` cut at the grid's lines, at the first element that begins there."""
    size, start = ITEM_BYTES[tensor.dtype], tensor.start
    while start < tensor.stop:
        to_line = piece_bytes - start % piece_bytes
        stop = min(tensor.stop, start + -(-to_line // size) * size)
        yield Part(tensor, start, stop)
        start = stop

"""The memory that kernels read their weights from: one table of experts, more than the caches hold, on large pages."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.bench.kernel_program import SCALE, bytes_of, scales
from localmoe.bench.rows import Listener
from localmoe.bench.shapes import Shapes
from localmoe.bench.shard import normal_codes
from localmoe.engine.reading import weight_memory

ALIGN_BYTES = 256  # what begins there, as in the store
PIECE_BYTES = 1 << 22  # drawn; they come again and again


class ExpertTable:
    """Experts one after the other, each with gate, up, down and their scales: FP8, or half as many in BF16."""

    def __init__(self, shapes: Shapes, listener: Listener, *, is_bf16: bool = False) -> None:
        self._shapes = shapes
        self.is_bf16 = is_bf16
        self._memory = weight_memory(nbytes_of(shapes))
        self._fill(_bf16_values() if is_bf16 else normal_codes(np.random.default_rng(1), PIECE_BYTES))
        for _, offset, rows, cols in () if is_bf16 else self._places():
            self.experts[:, offset : offset + 4 * scales(rows, cols).size].view(np.float32)[:] = SCALE
        if (share := huge_page_share(self._memory)) < 0.95:
            listener.warn(f"only {share:.0%} of the weights lie on pages of 2 MB: reads and kernels are slower for it")

    @property
    def flat(self) -> NDArray[np.uint8]:
        """[bytes] All of it."""
        return self._memory

    @property
    def experts(self) -> NDArray[np.uint8]:
        """[experts, stride] bytes."""
        return self._memory.reshape(self._shapes.num_experts // (1 + self.is_bf16), -1)

    def matrices(self, rows: int, cols: int) -> Iterator[NDArray[np.uint8] | NDArray[np.uint16]]:
        """As many as there is room for, [rows, cols] each, one after the other."""
        size = rows * cols * (1 + self.is_bf16)
        for start in range(0, self._memory.size - size + 1, -(-size // ALIGN_BYTES) * ALIGN_BYTES):
            matrix = self._memory[start : start + size]
            yield (matrix.view(np.uint16) if self.is_bf16 else matrix).reshape(rows, cols)

    def placements(self) -> list[native.ExpertMatrix]:
        """Where gate, up and down lie in an expert."""
        return [
            native.ExpertMatrix(start * (1 + self.is_bf16), None if self.is_bf16 else offset, rows, cols, self.is_bf16)
            for start, offset, rows, cols in self._places()
        ]

    def _places(self) -> Iterator[tuple[int, int, int, int]]:
        """For gate, up and down in FP8: the offsets of weights and scales, rows and columns."""
        s = self._shapes
        offset = 3 * s.inter * s.hidden
        for n, (rows, cols) in enumerate(((s.inter, s.hidden), (s.inter, s.hidden), (s.hidden, s.inter))):
            yield n * s.inter * s.hidden, offset, rows, cols
            offset += 4 * scales(rows, cols).size

    def _fill(self, piece: NDArray[np.uint8]) -> None:
        for start in range(0, self._memory.size, piece.size):
            part = self._memory[start : start + piece.size]
            part[:] = piece[: part.size]


def nbytes_of(shapes: Shapes) -> int:
    """What a table takes."""
    floats = 2 * scales(shapes.inter, shapes.hidden).size + scales(shapes.hidden, shapes.inter).size
    stride = 3 * shapes.inter * shapes.hidden + 4 * floats
    return shapes.num_experts * (-(-stride // ALIGN_BYTES) * ALIGN_BYTES)


def huge_page_share(array: NDArray[np.uint8], smaps: str = "/proc/self/smaps") -> float:
    """How much of `array` lies on pages of 2 MB, as the kernel says of its mapping."""
    start, end, huge_bytes, is_inside = array.ctypes.data, array.ctypes.data + array.nbytes, 0, False
    for line in Path(smaps).read_text(encoding="ascii", errors="replace").splitlines():
        if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = int(mapping[1], 16) < end and start < int(mapping[2], 16)
        elif is_inside and line.startswith(("AnonHugePages:", "Private_Hugetlb:", "Shared_Hugetlb:")):
            huge_bytes += 1024 * int(line.split()[1])
    return min(1.0, huge_bytes / array.nbytes)


def _bf16_values() -> NDArray[np.uint8]:
    values = np.random.default_rng(2).standard_normal(PIECE_BYTES // 2, np.float32) * np.float32(0.02)
    return bytes_of((values.view(np.uint32) >> 16).astype(np.uint16))

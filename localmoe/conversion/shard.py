"""One shard through a few megabytes of memory: bands of 128 rows become FP8, everything else is copied."""

import os
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from localmoe.conversion.accuracy import MatrixError
from localmoe.conversion.blocks import is_finite, quantise
from localmoe.conversion.choice import SCALE_SUFFIX, layer_of
from localmoe.conversion.target import Target
from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import TensorInfo
from localmoe.hub.json_file import fetch_hint, shown
from localmoe.model.config import BLOCK

COPY_BYTES = 4 << 20

Read = Callable[[int], None]  # told of every piece read; may raise to end it


class Shard:
    """Makes one new file."""

    def __init__(self, target: Target, folder: Path, chosen: Collection[str], on_read: Read) -> None:
        self._target, self._chosen, self._on_read = target, chosen, on_read
        self._path = folder / target.name

    def make(self) -> tuple[MatrixError, ...]:
        """On the disk before it has its name. CheckpointError for weights that are no numbers; OSError."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        self._in = os.open(self._target.source[0].file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._out = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                matrices = self._fill()
                os.fsync(self._out)
                self._forget_pages()
            finally:
                os.close(self._out)
        finally:
            os.close(self._in)
        fresh.replace(self._path)
        return matrices

    def _fill(self) -> tuple[MatrixError, ...]:
        self._write(0, self._target.head)
        os.ftruncate(self._out, self._target.nbytes)
        found = []
        for tensor in self._target.source:
            if tensor.name in self._chosen:
                found.append(self._quantise(tensor))
            else:
                self._copy(tensor)
        return tuple(found)

    def _quantise(self, tensor: TensorInfo) -> MatrixError:
        rows, columns = tensor.shape
        slots, name = self._target.slots, tensor.name
        scales, error, power = [], 0.0, 0.0
        for row in range(0, rows, BLOCK):
            height = min(BLOCK, rows - row)
            raw = self._read(tensor, row * columns * 2, height * columns * 2)
            bits = np.frombuffer(raw, np.uint16).reshape(height, columns)
            if not is_finite(bits):
                raise _no_numbers(tensor)
            band = quantise(bits)
            self._write(slots[name].start + row * columns, band.codes.tobytes())
            scales.append(band.scales)
            error, power = error + band.error, power + band.power
        self._write(slots[name + SCALE_SUFFIX].start, np.concatenate(scales).tobytes())
        layer = layer_of(name)
        assert layer is not None
        return MatrixError(name, layer, error, power)

    def _copy(self, tensor: TensorInfo) -> None:
        start = self._target.slots[tensor.name].start
        for at in range(0, tensor.nbytes, COPY_BYTES):
            self._write(start + at, self._read(tensor, at, min(COPY_BYTES, tensor.nbytes - at)))

    def _read(self, tensor: TensorInfo, at: int, num_bytes: int) -> bytes:
        """From byte `at` of the tensor."""
        self._on_read(num_bytes)
        data = os.pread(self._in, num_bytes, tensor.start + at)
        while len(data) < num_bytes:
            more = os.pread(self._in, num_bytes - len(data), tensor.start + at + len(data))
            if not more:
                name = shown(tensor.file.name)
                raise CheckpointError(f"shard {name} became shorter while it was read.", fetch_hint(tensor.file))
            data += more
        return data

    def _write(self, at: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._out, view, at)
            view, at = view[written:], at + written

    def _forget_pages(self) -> None:
        """Tens of gigabytes pass: the memory is for other programs' files."""
        for fd in (self._in, self._out):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _no_numbers(tensor: TensorInfo) -> CheckpointError:
    return CheckpointError(
        f"tensor {shown(tensor.name)} in shard {shown(tensor.file.name)} holds values that are infinite or no numbers.",
        fetch_hint(tensor.file),
    )

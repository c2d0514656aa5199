"""Random tensors in a safetensors file, written as they are drawn."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 128  # rows and columns that share a scale
_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to be drawn: normal with deviation `std` around `mean`."""

    name: str
    dtype: Literal["F8_E4M3", "BF16", "F32"]
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    zero_row: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * _BYTES[self.dtype]


def fp8(name: str, rows: int, cols: int) -> Iterator[Tensor]:
    """A linear layer and its scales, so that outputs have the inputs' size."""
    yield Tensor(f"{name}.weight", "F8_E4M3", (rows, cols), 0.0)
    scale = cols**-0.5 / float(_VALUES.std())
    yield Tensor(f"{name}.weight_scale_inv", "F32", (-(-rows // BLOCK), -(-cols // BLOCK)), 0.0, scale)


def bf16(name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """Normal numbers."""
    return Tensor(name, "BF16", shape, std)


def ones(name: str, width: int) -> Tensor:
    """A norm's weight."""
    return Tensor(name, "BF16", (width,), 0.0, 1.0)


def zeroed_row(tensor: Tensor, row: int) -> Tensor:
    """`tensor` with a row of zeros."""
    return replace(tensor, zero_row=row)


def write_shard(file: Path, tensors: list[Tensor], random: np.random.Generator) -> int:
    """Draws and writes `tensors`, in the order that safetensors' own writer gives them; returns their bytes."""
    header: dict[str, Any] = {}
    tensors = sorted(tensors, key=lambda tensor: (-_BYTES[tensor.dtype], tensor.name))
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            out.write(_draw(tensor, random).data)
    return end


def _draw(tensor: Tensor, random: np.random.Generator) -> NDArray[Any]:
    if tensor.dtype == "F8_E4M3":
        return normal_codes(random, prod(tensor.shape))
    values = np.full(tensor.shape, tensor.mean, np.float32)
    if tensor.std:
        values += random.standard_normal(tensor.shape, np.float32) * np.float32(tensor.std)
    if tensor.zero_row is not None:
        values[tensor.zero_row] = 0
    return values if tensor.dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def normal_codes(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """FP8 codes of normal numbers, NaN never among them."""
    return _CODES[np.frombuffer(random.bytes(count), np.uint8)]


def _decoded() -> NDArray[np.float64]:
    """The value of each E4M3 code but the sign bit, NaN left out."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, (code & 7) / 8
    return np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))


def _normal_codes() -> NDArray[np.uint8]:
    """256 codes whose values are spread as a normal distribution's, the largest near 448."""
    normal = NormalDist()
    wanted = np.array([normal.inv_cdf((i + 0.5) / 256) for i in range(256)]) * (448 / 3)
    nearest = np.abs(np.abs(wanted)[:, None] - _decoded()[None, :]).argmin(axis=1)
    return (nearest + np.where(wanted < 0, 128, 0)).astype(np.uint8)


_CODES = _normal_codes()
_VALUES = _decoded()[_CODES & 127] * np.where(_CODES & 128, -1.0, 1.0)

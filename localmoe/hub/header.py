"""The header of one safetensors file: which tensor lies in which bytes.

The format: 8 bytes little-endian header length, that many bytes of JSON, then the tensors' data without holes
(https://github.com/huggingface/safetensors, "Format").
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError
from localmoe.hub.json_file import fetch_hint, parse_object, require_file, shown, unreadable

MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors' own reader
MAX_DIMS = 8
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor's bytes are: [start, stop) of `file`, row-major."""

    name: str
    dtype: str  # safetensors' name: "F8_E4M3", "BF16", "F32", ...
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of the file; CheckpointError unless its size and its header agree to the byte."""
    size = require_file(path).st_size
    where, hint = f"shard {shown(path.name)}", fetch_hint(path)
    try:
        with path.open("rb") as file:
            length = header_bytes(file.read(8), size, where, hint) - 8
            raw = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) != length:
        raise CheckpointError(f"{where} became shorter while it was read.", hint)
    return parse_header(raw, path, size, where, hint)


def header_bytes(first: bytes, size: int, where: str, hint: str) -> int:
    """How long the header is, its 8 bytes of length included, by the first bytes of a file of `size` bytes."""
    if size < 8:
        raise CheckpointError(
            f"{where} has {size} bytes; a safetensors file begins with 8 that give its header's length.", hint
        )
    length = int.from_bytes(first[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{where} announces a header of {length:,} bytes: it is not a safetensors file.", hint)
    if 8 + length > size:
        raise CheckpointError(f"{where} ends at byte {size:,}, inside its header of {length:,} bytes.", hint)
    return 8 + length


def parse_header(raw: bytes, path: Path, size: int, where: str, hint: str) -> dict[str, TensorInfo]:
    """Every tensor of the file `path` of `size` bytes, whose header without its length is `raw`."""
    data_start = 8 + len(raw)
    entries = parse_object(raw, f"the header of {where}", hint)
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(name, entry, path, data_start) for name, entry in entries.items()}
    _check_extents(sorted(tensors.values(), key=lambda t: (t.start, t.stop)), data_start, size, where, hint)
    return tensors


def _tensor(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise _wrong(name, path, "has no description in the header")
    values: list[Any] = [entry.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = values
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _wrong(name, path, f"has the unknown dtype {shown(dtype)}")
    if not _sizes(shape) or len(shape) > MAX_DIMS:
        raise _wrong(name, path, f"has no valid shape: {shown(shape)}")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong(name, path, f"has no valid byte range: {shown(offsets)}")
    nbytes, needed_bits = offsets[1] - offsets[0], math.prod(shape) * DTYPE_BITS[dtype]
    if needed_bits != 8 * nbytes:
        raise _wrong(name, path, f"has {nbytes:,} bytes; {dtype} of {by(shape)} takes {-(-needed_bits // 8):,}")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1])


def _wrong(name: str, path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"tensor {shown(name)} in shard {shown(path.name)} {what}.", fetch_hint(path))


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 60 for n in value)


def _check_extents(tensors: list[TensorInfo], data_start: int, size: int, where: str, hint: str) -> None:
    end = max((t.stop for t in tensors), default=data_start)
    if size < end:
        raise CheckpointError(f"{where} ends at byte {size:,}; its header promises {end:,}.", hint)
    if size > end:
        raise CheckpointError(f"{where} has {size:,} bytes; its header accounts for {end:,} only.", hint)
    for one, other in pairwise(tensors):
        if other.start < one.stop:
            raise CheckpointError(f"{where}: tensors {shown(one.name)} and {shown(other.name)} overlap.", hint)
    starts = [t.start for t in tensors]
    for stop, start in zip([data_start, *(t.stop for t in tensors)], starts, strict=False):
        if stop < start:
            raise CheckpointError(f"{where}: no tensor owns bytes {stop:,} to {start:,}.", hint)


def by(shape: tuple[int, ...] | list[int]) -> str:
    """A shape for people: `7168 x 2048`."""
    return " x ".join(str(n) for n in shape) or "one number"

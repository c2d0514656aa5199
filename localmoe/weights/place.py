"""From a piece just read to its places in the arena, each value looked at on the way."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import TensorInfo
from localmoe.hub.json_file import fetch_hint
from localmoe.weights.layout import SCALE_SUFFIX, Span, is_vector, resting_bytes
from localmoe.weights.pieces import Part, Piece

Bytes = NDArray[np.uint8]


class Room(Protocol):
    """Where bytes are put: an arena, a slot."""

    def view(self, offset: int, nbytes: int) -> Bytes: ...


class Places(Protocol):
    """Where in it, as layout.Layout has them."""

    @property
    def places(self) -> dict[str, int]: ...

    def spans(self, name: str) -> Iterable[Span]: ...


_KINDS = {"F8_E4M3": "fp8", "BF16": "bf16", "F32": "f32"}


def look_at(tensor: TensorInfo, start: int, values: Bytes) -> None:
    """Only that, at `values` from byte `start` of the file, where they rest already; CheckpointError as `place`."""
    bad = native.find_bad_value(values, kind_of(tensor))
    if bad >= 0:
        raise _bad_value(tensor, start + bad, values[bad:])


def place(arena: Room, layout: Places, piece: Piece, raw: Bytes) -> None:
    """Copies the parts of `piece` out of `raw`, its bytes; CheckpointError for a value that no weight may have."""
    for part in piece.parts:
        source = raw[part.start - piece.start : part.stop - piece.start]
        if is_vector(part.tensor):
            _place_vector(part, source, arena.view(layout.places[part.tensor.name], resting_bytes(part.tensor)))
        else:
            for span in layout.spans(part.tensor.name):
                _place_rows(part, source, span, arena)


def _place_rows(part: Part, source: Bytes, span: Span, arena: Room) -> None:
    """What `part` has of the span's bytes."""
    first = part.start - part.tensor.start
    start, stop = max(first, span.start), min(first + source.size, span.stop)
    if start < stop:
        target = arena.view(span.offset + start - span.start, stop - start)
        _copy(part.tensor, part.tensor.start + start, source[start - first : stop - first], target)


def _place_vector(part: Part, source: Bytes, target: Bytes) -> None:
    raw = np.empty_like(source)  # aligned
    _copy(part.tensor, part.start, source, raw)
    values = _as_float32(raw, part.tensor.dtype)
    first = (part.start - part.tensor.start) * values.size // raw.size
    target.view(np.float32)[first : first + values.size] = values


def _as_float32(raw: Bytes, dtype: str) -> NDArray[np.float32]:
    if dtype == "F32":
        return raw.view(np.float32)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _copy(tensor: TensorInfo, start: int, values: Bytes, target: Bytes) -> None:
    """`values`, from byte `start` of the file, to `target`, if they are what weights may be."""
    bad = native.copy_values(values, target, kind_of(tensor))
    if bad >= 0:
        raise _bad_value(tensor, start + bad, values[bad:])


def kind_of(tensor: TensorInfo) -> str:
    """What native code calls its values."""
    return "scale" if tensor.name.endswith(SCALE_SUFFIX) else _KINDS[tensor.dtype]


def _bad_value(tensor: TensorInfo, at: int, values: Bytes) -> CheckpointError:
    if tensor.name.endswith(SCALE_SUFFIX):
        what = f"the scale {values[:4].copy().view(np.float32)[0]:g}, which is not finite and positive,"
    elif tensor.dtype == "F8_E4M3":
        what = f"the FP8 code 0x{values[0]:02X}, which is not a number,"
    else:
        what = "a value that is not a finite number"
    return CheckpointError(
        f"tensor {tensor.name} has {what} at byte {at:,} of shard {tensor.file.name}.", fetch_hint(tensor.file)
    )

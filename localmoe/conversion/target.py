"""The file that a shard becomes: which tensor will lie in which bytes, known before the first is written."""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from localmoe.conversion.choice import SCALE_SUFFIX
from localmoe.hub.checkpoint import TensorInfo
from localmoe.hub.header import DTYPE_BITS
from localmoe.model.config import BLOCK


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in the new file."""

    dtype: str
    shape: tuple[int, ...]
    start: int = 0  # in the file

    @property
    def nbytes(self) -> int:
        """Of its data."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class Target:
    """One new file."""

    name: str
    source: tuple[TensorInfo, ...]  # what it is made from, in the order of their bytes
    slots: dict[str, Slot]
    head: bytes  # header and its length
    nbytes: int

    @property
    def source_bytes(self) -> int:
        """To be read for it."""
        return sum(tensor.nbytes for tensor in self.source)

    @property
    def tensor_bytes(self) -> int:
        """Of all tensors in it."""
        return sum(slot.nbytes for slot in self.slots.values())


def make_target(name: str, tensors: Iterable[TensorInfo], chosen: Collection[str]) -> Target:
    """The new file for the tensors of one shard; large elements first, as safetensors' own writer puts them."""
    source = tuple(sorted(tensors, key=lambda tensor: tensor.start))
    wanted: dict[str, Slot] = {}
    for tensor in source:
        wanted.update(_slots(tensor, tensor.name in chosen))
    order = sorted(wanted, key=lambda n: (-DTYPE_BITS[wanted[n].dtype], n))
    return _laid_out(name, source, {n: wanted[n] for n in order})


def scales_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Blocks of rows and of columns, partial ones included."""
    rows, columns = shape
    return -(-rows // BLOCK), -(-columns // BLOCK)


def _slots(tensor: TensorInfo, is_chosen: bool) -> dict[str, Slot]:
    if not is_chosen:
        return {tensor.name: Slot(tensor.dtype, tensor.shape)}
    return {
        tensor.name: Slot("F8_E4M3", tensor.shape),
        tensor.name + SCALE_SUFFIX: Slot("F32", scales_shape(tensor.shape)),
    }


def _laid_out(name: str, source: tuple[TensorInfo, ...], slots: dict[str, Slot]) -> Target:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end, starts = 0, {}
    for tensor, slot in slots.items():
        starts[tensor] = end
        end += slot.nbytes
        header[tensor] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": [starts[tensor], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    placed = {n: Slot(slot.dtype, slot.shape, len(head) + starts[n]) for n, slot in slots.items()}
    return Target(name, source, placed, head, len(head) + end)

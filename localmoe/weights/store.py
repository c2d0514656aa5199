"""The only copy of a model's weights, by name: experts by layer and id, other linears, float32 vectors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.weights.arena import Arena
from localmoe.weights.layout import SCALE_SUFFIX, Layout, Placement, is_vector

__all__ = ["Experts", "Linear", "Placement", "Store"]

_NUMPY: dict[str, Any] = {"F8_E4M3": np.uint8, "BF16": np.uint16, "F32": np.float32}


@dataclass(frozen=True)
class Linear:
    """A matrix as the checkpoint has it: uint8 (FP8 E4M3 codes), uint16 (BF16) or float32."""

    weight: NDArray[Any]  # [rows, cols]
    scale: NDArray[np.float32] | None  # [ceil(rows / 128), ceil(cols / 128)], multiplied; only with FP8


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer, each once, at a constant stride."""

    num_experts: int
    blob: NDArray[np.uint8]  # [E, stride] bytes
    gate: Placement
    up: Placement
    down: Placement

    def expert(self, e: int) -> tuple[Linear, Linear, Linear]:
        """Gate, up and down of expert `e`: views of the blob."""
        row = self.blob[e]
        return _linear(row, self.gate), _linear(row, self.up), _linear(row, self.down)


class Store:
    """Views by name of one arena.

    What it hands out are views that keep the arena alive: the memory goes back when the store is closed (or gone)
    *and* the last view is gone. `is_direct` tells that all was read past the page cache, `notes` how it was read and
    on what memory it lies.
    """

    def __init__(self, arena: Arena, layout: Layout, *, is_direct: bool = False, notes: tuple[str, ...] = ()) -> None:
        self._arena: Arena | None = arena
        self._layout = layout
        self.nbytes = arena.nbytes
        self.is_direct = is_direct
        self.notes = notes

    def linear(self, name: str) -> Linear:
        """The linear (or embedding) `name`, without ".weight". KeyError when the specs did not ask for it."""
        scale = f"{name}{SCALE_SUFFIX}"
        return Linear(self._view(f"{name}.weight"), self._view(scale) if scale in self._layout.tensors else None)

    def vector(self, name: str) -> NDArray[np.float32]:
        """[n] float32: a norm's weight or a bias, by its full name."""
        assert is_vector(self._layout.tensors[name]), name
        return self._view(name)

    def experts(self, prefix: str) -> Experts:
        """The routed experts under `prefix`, such as "model.layers.3.mlp.experts"."""
        assert self._arena is not None, "closed"
        e = self._layout.experts[prefix]
        blob = self._arena.typed(e.offset, (e.num_experts, e.stride), np.uint8)
        return Experts(e.num_experts, blob, e.gate, e.up, e.down)

    def close(self) -> None:
        """Lets go of the arena."""
        self._arena = None

    def _view(self, name: str) -> NDArray[Any]:
        assert self._arena is not None, "closed"
        tensor = self._layout.tensors[name]
        dtype = np.float32 if is_vector(tensor) else _NUMPY[tensor.dtype]
        return self._arena.typed(self._layout.places[name], tensor.shape, dtype)


def _linear(row: NDArray[np.uint8], p: Placement) -> Linear:
    dtype = np.dtype(np.uint8 if p.dtype == "fp8" else np.uint16)
    weight = row[p.offset : p.offset + p.rows * p.cols * dtype.itemsize].view(dtype).reshape(p.rows, p.cols)
    if p.scale_offset is None:
        return Linear(weight, None)
    blocks = -(-p.rows // 128), -(-p.cols // 128)
    scale = row[p.scale_offset : p.scale_offset + 4 * blocks[0] * blocks[1]].view(np.float32).reshape(blocks)
    return Linear(weight, scale)

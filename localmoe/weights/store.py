"""The only copy of a model's weights, by name: experts by layer and id, other linears, float32 vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.weights.arena import Arena
from localmoe.weights.layout import BLOCK, SCALE_SUFFIX, Layout, Placement, is_vector
from localmoe.weights.page_lock import PageLock, Register, Unregister

__all__ = ["Experts", "Linear", "Placement", "Store"]

_NUMPY: dict[str, Any] = {"F8_E4M3": np.uint8, "BF16": np.uint16, "F32": np.float32}


@dataclass(frozen=True)
class Linear:
    """A matrix as the checkpoint has it: uint8 (FP8 E4M3 codes), uint16 (BF16) or float32."""

    weight: NDArray[Any]  # [rows, cols]
    scale: NDArray[np.float32] | None  # [ceil(rows / 128), ceil(cols / 128)], multiplied; only with FP8


@dataclass(frozen=True)
class ExpertPart:
    """One NUMA node's rows of a layer's experts, at a constant stride."""

    blob: NDArray[np.uint8]  # [E, stride] bytes; [0, stride] where the experts do not rest in memory
    gate: Placement
    up: Placement
    down: Placement

    def expert(self, e: int) -> tuple[Linear, Linear, Linear]:
        """This part's rows of gate, up and down of expert `e`: views of the blob."""
        row = self.blob[e]
        return _linear(row, self.gate), _linear(row, self.up), _linear(row, self.down)


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer, each row once; part n lies on the n-th of the store's nodes."""

    num_experts: int
    parts: tuple[ExpertPart, ...]

    def expert(self, e: int) -> tuple[Linear, Linear, Linear]:
        """Gate, up and down of expert `e`: views where all rows lie together, else put together from the parts."""
        parts = [part.expert(e) for part in self.parts]
        if len(parts) == 1:
            return parts[0]
        gate, up, down = zip(*parts, strict=True)
        return (
            _whole(gate, [part.gate for part in self.parts]),
            _whole(up, [part.up for part in self.parts]),
            _whole(down, [part.down for part in self.parts]),
        )


class Store:
    """Views by name of one arena.

    Experts are split by rows over `nodes`, NUMA nodes; none where all lie together.
    What it hands out are views that keep the arena alive: the memory goes back when the store is closed (or gone)
    *and* the last view is gone. `is_direct` tells that all was read past the page cache, `notes` how it was read and
    on what memory it lies.
    """

    def __init__(self, arena: Arena, layout: Layout, *, is_direct: bool = False, notes: tuple[str, ...] = ()) -> None:
        self._arena: Arena | None = arena
        self._layout = layout
        self.nbytes = layout.nbytes
        self.nodes = layout.nodes
        self.is_direct = is_direct
        self.notes = notes
        self._lock: PageLock | None = None
        self._streamed: Mapping[str, Experts] = {}

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
        if prefix in self._streamed:
            return self._streamed[prefix]
        assert self._arena is not None, "closed"
        layout, arena = self._layout.experts[prefix], self._arena
        parts = (
            ExpertPart(arena.typed(p.offset, (layout.num_experts, p.stride), np.uint8), p.gate, p.up, p.down)
            for p in layout.parts
        )
        return Experts(layout.num_experts, tuple(parts))

    def has_experts(self, prefix: str) -> bool:
        """Whether some of the experts under `prefix` rest here."""
        return prefix in self._layout.experts

    def stream(self, experts: Mapping[str, Experts]) -> None:
        """Experts by prefix that do not rest here, but come from elsewhere when they are computed."""
        self._streamed = experts

    def lock_pages(self, register: Register, unregister: Unregister) -> None:
        """Page-locks all weights for a GPU, once they are loaded; `notes` tell how it went."""
        assert self._arena is not None and self._lock is None, "closed, or locked already"
        self._lock = PageLock(self._arena.address, self._arena.page_bytes, register, unregister)
        self.notes = (*self.notes, self._lock.note)

    @property
    def is_page_locked(self) -> bool:
        """Whether a GPU may copy from the weights by itself."""
        return self._lock is not None and self._lock.is_locked

    def close(self) -> None:
        """Lets go of the arena, and of its pages."""
        if self._lock is not None:
            self._lock.release()
        self._arena = None

    def _view(self, name: str) -> NDArray[Any]:
        assert self._arena is not None, "closed"
        tensor = self._layout.tensors[name]
        dtype = np.float32 if is_vector(tensor) else _NUMPY[tensor.dtype]
        return self._arena.typed(self._layout.places[name], tensor.shape, dtype)


def _linear(row: NDArray[np.uint8], p: Placement) -> Linear:
    weight = row[p.offset : p.offset + p.rows * p.row_bytes]
    codes = weight.view(np.uint8 if p.dtype == "fp8" else np.uint16).reshape(p.rows, p.cols)
    if p.scale_offset is None:
        return Linear(codes, None)
    rows, cols = p.scale_shape
    return Linear(codes, row[p.scale_offset : p.scale_offset + 4 * rows * cols].view(np.float32).reshape(rows, cols))


def _whole(linears: Sequence[Linear], places: Sequence[Placement]) -> Linear:
    """A copy of all rows; a row of scales that two parts have comes once."""
    weight = np.concatenate([linear.weight for linear in linears])
    if places[0].scale_offset is None:
        return Linear(weight, None)
    scale = np.empty((-(-len(weight) // BLOCK), places[0].scale_shape[1]), np.float32)
    for linear, place in zip(linears, places, strict=True):
        assert linear.scale is not None
        first = place.first_row // BLOCK
        scale[first : first + len(linear.scale)] = linear.scale
    return Linear(weight, scale)

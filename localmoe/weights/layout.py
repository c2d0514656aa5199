"""Where each tensor goes in the arena: a pure function of the checkpoint's tensors.

Routed experts first, [layer][expert] at a constant stride: gate, up, down, then their scales. Everything else after
them, in place. Each matrix begins on a 256-byte boundary and keeps the checkpoint's row-major bytes.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hub.checkpoint import TensorInfo

ALIGN_BYTES = 256
SCALE_SUFFIX = ".weight_scale_inv"
Quant = Literal["fp8", "bf16"]
_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight(_scale_inv)?")
_QUANT: dict[str, Quant] = {"F8_E4M3": "fp8", "BF16": "bf16"}


@dataclass(frozen=True)
class Placement:
    """Where one matrix lies in an expert's bytes."""

    offset: int
    scale_offset: int | None  # None: not quantised
    rows: int
    cols: int
    dtype: Quant


@dataclass(frozen=True)
class ExpertsLayout:
    """The routed experts of one layer: expert e begins at `offset + e * stride`."""

    num_experts: int
    offset: int
    stride: int
    gate: Placement
    up: Placement
    down: Placement

    def placement(self, matrix: str) -> Placement:
        """By name: gate, up or down."""
        return {"gate": self.gate, "up": self.up, "down": self.down}[matrix]


@dataclass
class Layout:
    """The arena's plan. `places` names every tensor's offset, those of experts included."""

    tensors: dict[str, TensorInfo]
    places: dict[str, int] = field(default_factory=dict)
    experts: dict[str, ExpertsLayout] = field(default_factory=dict)
    expert_bytes: int = 0
    nbytes: int = 0

    @property
    def file_bytes(self) -> int:
        """Bytes in the checkpoint's files."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def plan_layout(tensors: Iterable[TensorInfo]) -> Layout:
    """The layout of `tensors`, which the checkpoint has validated."""
    layout = Layout({tensor.name: tensor for tensor in tensors})
    others = []
    layers: dict[str, dict[int, dict[str, TensorInfo]]] = {}
    for tensor in layout.tensors.values():
        if match := _EXPERT.fullmatch(tensor.name):
            prefix, expert, matrix, scale = match.groups()
            layers.setdefault(prefix, {}).setdefault(int(expert), {})[matrix + (scale or "")] = tensor
        else:
            others.append(tensor)
    for prefix, experts in layers.items():
        _place_experts(layout, prefix, experts)
    layout.expert_bytes = layout.nbytes
    for tensor in others:
        layout.places[tensor.name] = layout.nbytes
        layout.nbytes += _aligned(resting_bytes(tensor))
    return layout


def is_vector(tensor: TensorInfo) -> bool:
    """Norms and biases: kept as float32, whatever the checkpoint has."""
    return len(tensor.shape) == 1


def resting_bytes(tensor: TensorInfo) -> int:
    """Bytes in the arena: the checkpoint's own, but for vectors."""
    return 4 * math.prod(tensor.shape) if is_vector(tensor) else tensor.nbytes


def _place_experts(layout: Layout, prefix: str, experts: dict[int, dict[str, TensorInfo]]) -> None:
    stored = {matrix: (t.shape, t.dtype) for matrix, t in experts[0].items()}
    offsets, stride = _offsets(experts[0])
    gate, up, down = (_placement(experts[0], offsets, matrix) for matrix in ("gate", "up", "down"))
    start = layout.nbytes
    layout.experts[prefix] = ExpertsLayout(len(experts), start, stride, gate, up, down)
    for expert, matrices in experts.items():
        if {matrix: (t.shape, t.dtype) for matrix, t in matrices.items()} != stored:
            raise CheckpointError(
                f"expert {expert} of {prefix} is not stored like expert 0.",
                "all experts of a layer need the same shapes and dtypes: get the checkpoint again.",
            )
        for matrix, tensor in matrices.items():
            layout.places[tensor.name] = start + expert * stride + offsets[matrix]
    layout.nbytes = start + len(experts) * stride


def _offsets(matrices: dict[str, TensorInfo]) -> tuple[dict[str, int], int]:
    """Offsets within one expert, and the stride: weights first, so that gate, up and down stream without gaps."""
    offsets, end = {}, 0
    for matrix in (m + s for s in ("", "_scale_inv") for m in ("gate", "up", "down") if m + s in matrices):
        offsets[matrix] = end
        end += _aligned(matrices[matrix].nbytes)
    return offsets, end


def _placement(matrices: dict[str, TensorInfo], offsets: dict[str, int], matrix: str) -> Placement:
    tensor = matrices[matrix]
    if tensor.dtype not in _QUANT:
        raise UnsupportedModelError(
            f"tensor {tensor.name} is stored as {tensor.dtype}; experts are read as F8_E4M3 or BF16.",
            "see `localmoe models` for checkpoints that run.",
        )
    rows, cols = tensor.shape
    return Placement(offsets[matrix], offsets.get(f"{matrix}_scale_inv"), rows, cols, _QUANT[tensor.dtype])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES

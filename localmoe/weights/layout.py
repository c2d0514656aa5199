"""Where each tensor goes in the arena: a pure function of the checkpoint's tensors and the machine's NUMA nodes.

Routed experts first, for each node [layer][expert] at a constant stride: the node's rows of gate, up and down, then
the scales that they need (a row of scales that two nodes need, both have). Everything else after them, in place. Each
matrix begins on a 256-byte boundary and keeps the checkpoint's row-major bytes.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES
from localmoe.hub.checkpoint import TensorInfo

ALIGN_BYTES = 256
BLOCK = 128  # rows and columns that share one FP8 scale
PART_ROWS = 64  # a node's rows begin at a multiple of it: so many hidden activations are prepared together
SCALE_SUFFIX = ".weight_scale_inv"
Quant = Literal["fp8", "bf16"]
MatrixName = Literal["gate", "up", "down"]
MATRICES: tuple[MatrixName, ...] = ("down", "gate", "up")  # as in most files, so that one read brings an expert
_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight(_scale_inv)?")
_QUANT: dict[str, Quant] = {"F8_E4M3": "fp8", "BF16": "bf16"}


@dataclass(frozen=True)
class Placement:
    """Where rows first_row .. first_row + rows of one matrix lie in a part's bytes of an expert."""

    offset: int
    scale_offset: int | None  # None: not quantised
    first_row: int
    rows: int
    cols: int
    dtype: Quant

    @property
    def row_bytes(self) -> int:
        """Of weights."""
        return self.cols * (1 if self.dtype == "fp8" else 2)

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Rows and columns of the scales that the rows need: those of every block that they touch."""
        first, end = self.first_row // BLOCK, -(-(self.first_row + self.rows) // BLOCK)
        return end - first if self.rows else 0, -(-self.cols // BLOCK)


@dataclass(frozen=True)
class PartLayout:
    """One node's rows of a layer's experts: those of expert e begin at `offset + e * stride`."""

    offset: int
    stride: int
    gate: Placement
    up: Placement
    down: Placement

    def placement(self, matrix: MatrixName) -> Placement:
        """By name."""
        return {"gate": self.gate, "up": self.up, "down": self.down}[matrix]


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a tensor rest at `offset` of the arena."""

    start: int
    stop: int
    offset: int


@dataclass(frozen=True)
class ExpertsLayout:
    """The routed experts of one layer, in one part for each node."""

    num_experts: int
    parts: tuple[PartLayout, ...]

    def spans(self, expert: int, matrix: MatrixName, *, scales: bool) -> Iterator[Span]:
        """Where the bytes of one of the expert's tensors rest; scales may rest twice."""
        for part in self.parts:
            place, base = part.placement(matrix), part.offset + expert * part.stride
            if not scales:
                start = place.first_row * place.row_bytes
                yield Span(start, start + place.rows * place.row_bytes, base + place.offset)
            elif place.scale_offset is not None:
                rows, cols = place.scale_shape
                start = place.first_row // BLOCK * cols * 4
                yield Span(start, start + rows * cols * 4, base + place.scale_offset)


@dataclass(frozen=True)
class Region:
    """[start, stop) of the arena, for memory of `nodes`: of one, or spread over several."""

    start: int
    stop: int
    nodes: tuple[int, ...]


@dataclass
class Layout:
    """The arena's plan. `places` has the offset of every tensor but the experts'; `spans` knows those too.

    `nodes` are those that experts are split over, and `regions` says what is meant for which; none where there is
    nothing to choose from.
    """

    tensors: dict[str, TensorInfo]
    nodes: tuple[int, ...] = ()
    places: dict[str, int] = field(default_factory=dict)
    experts: dict[str, ExpertsLayout] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    expert_bytes: int = 0
    nbytes: int = 0

    @property
    def file_bytes(self) -> int:
        """Bytes in the checkpoint's files."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def spans(self, name: str) -> Iterable[Span]:
        """Where the bytes of tensor `name` rest, in the order of the tensor."""
        if found := expert_of(name):
            prefix, expert, matrix, is_scale = found
            return self.experts[prefix].spans(expert, matrix, scales=is_scale)
        return (Span(0, resting_bytes(self.tensors[name]), self.places[name]),)


def expert_of(name: str) -> tuple[str, int, MatrixName, bool] | None:
    """Prefix, id, matrix and whether it is the scales, of a routed expert's tensor; None for others."""
    if match := _EXPERT.fullmatch(name):
        prefix, expert, matrix, scale = match.groups()
        return prefix, int(expert), cast(MatrixName, matrix), bool(scale)
    return None


def plan_layout(tensors: Iterable[TensorInfo], nodes: Sequence[int] = ()) -> Layout:
    """The layout of `tensors`, which the checkpoint has validated, on `nodes`; in one part on fewer than two."""
    layout = Layout({tensor.name: tensor for tensor in tensors}, tuple(nodes) if len(nodes) > 1 else ())
    layers, others = _sort(layout.tensors.values())
    for prefix, experts in layers.items():
        _require_alike(prefix, experts)
    parts: dict[str, list[PartLayout]] = {prefix: [] for prefix in layers}
    num_parts = max(1, len(layout.nodes))
    for n in range(num_parts):
        start = layout.nbytes
        for prefix, experts in layers.items():
            part = _part(layout.nbytes, experts[0], n, num_parts)
            layout.nbytes += len(experts) * part.stride
            parts[prefix].append(part)
        _end_region(layout, start, layout.nodes[n : n + 1])
    layout.experts = {prefix: ExpertsLayout(len(layers[prefix]), tuple(parts[prefix])) for prefix in layers}
    layout.expert_bytes = start = layout.nbytes
    for tensor in others:
        layout.places[tensor.name] = layout.nbytes
        layout.nbytes += _aligned(resting_bytes(tensor))
    _end_region(layout, start, layout.nodes)
    return layout


def is_vector(tensor: TensorInfo) -> bool:
    """Norms and biases: kept as float32, whatever the checkpoint has."""
    return len(tensor.shape) == 1


def resting_bytes(tensor: TensorInfo) -> int:
    """Bytes in the arena: the checkpoint's own, but for vectors."""
    return 4 * math.prod(tensor.shape) if is_vector(tensor) else tensor.nbytes


_Experts = dict[int, dict[str, TensorInfo]]  # by id and by matrix, scales with "_scale_inv" behind


def _sort(tensors: Iterable[TensorInfo]) -> tuple[dict[str, _Experts], list[TensorInfo]]:
    """Routed experts by layer, and the others."""
    layers: dict[str, _Experts] = {}
    others = []
    for tensor in tensors:
        if match := _EXPERT.fullmatch(tensor.name):
            prefix, expert, matrix, scale = match.groups()
            layers.setdefault(prefix, {}).setdefault(int(expert), {})[matrix + (scale or "")] = tensor
        else:
            others.append(tensor)
    return layers, others


def _require_alike(prefix: str, experts: _Experts) -> None:
    stored = {matrix: (t.shape, t.dtype) for matrix, t in experts[0].items()}
    for expert, matrices in experts.items():
        if {matrix: (t.shape, t.dtype) for matrix, t in matrices.items()} != stored:
            raise CheckpointError(
                f"expert {expert} of {prefix} is not stored like expert 0.",
                "all experts of a layer need the same shapes and dtypes: get the checkpoint again.",
            )


def _part(offset: int, matrices: dict[str, TensorInfo], n: int, num_parts: int) -> PartLayout:
    """Part `n` of a layer: weights first, so that down, gate and up stream without gaps."""
    places: dict[str, Placement] = {}
    end = 0
    for name in MATRICES:
        places[name] = _placement(matrices[name], end, n, num_parts)
        end += _aligned(places[name].rows * places[name].row_bytes)
    for name in MATRICES:
        if f"{name}_scale_inv" in matrices:
            places[name] = replace(places[name], scale_offset=end)
            end += _aligned(4 * math.prod(places[name].scale_shape))
    return PartLayout(offset, end, places["gate"], places["up"], places["down"])


def _placement(tensor: TensorInfo, offset: int, n: int, num_parts: int) -> Placement:
    if tensor.dtype not in _QUANT:
        raise UnsupportedModelError(
            f"tensor {tensor.name} is stored as {tensor.dtype}; experts are read as F8_E4M3 or BF16.",
            "see `localmoe models` for checkpoints that run.",
        )
    rows, cols = tensor.shape
    first, end = (_first_row(rows, part, num_parts) for part in (n, n + 1))
    return Placement(offset, None, first, end - first, cols, _QUANT[tensor.dtype])


def _first_row(rows: int, n: int, num_parts: int) -> int:
    """Of part `n`: as even as multiples of PART_ROWS can be."""
    return min(rows, -(-rows // PART_ROWS) * n // num_parts * PART_ROWS)


def _end_region(layout: Layout, start: int, nodes: tuple[int, ...]) -> None:
    """What was placed from `start` on is meant for `nodes`; the next region begins on a page of its own."""
    if nodes:
        layout.nbytes = -(-layout.nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        layout.regions.append(Region(start, layout.nbytes, nodes))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES

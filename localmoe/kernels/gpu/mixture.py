"""Routed experts group by group: what was chosen, sorted once for a layer, and each group's part of the sum."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.combine import combine, sort_by_expert
from localmoe.kernels.gpu.experts import down, gate_up
from localmoe.kernels.gpu.launch import Launch, ceil_div
from localmoe.kernels.gpu.matrix import BLOCK, Activations, Weights, weights_in
from localmoe.kernels.gpu.quantise import quantise
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.ops import Experts, Placement
from localmoe.kernels.segments import Group


class Choices:
    """Where the rows of a layer's choices lie once they are sorted by expert: buffers for up to `max_tokens` tokens."""

    def __init__(self, gpu: Gpu, max_tokens: int, top_k: int, num_experts: int) -> None:
        self._tokens = gpu.empty((max_tokens * top_k,), torch.int32)
        self._offsets = gpu.empty((num_experts + 1,), torch.int32)
        self._rows = gpu.empty((max_tokens, top_k), torch.int32)
        self._num_tokens = 0

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self._tokens.nbytes + self._offsets.nbytes + self._rows.nbytes

    def sort(self, ids: Tensor, num_experts: int) -> None:
        """Of ids [T, K] int32. Nothing waits for the device."""
        found = sort_by_expert(ids, 0, num_experts)
        self._num_tokens = len(ids)
        self.tokens.copy_(found.tokens)
        self._offsets[: num_experts + 1].copy_(found.offsets)
        self.rows.copy_(found.rows)

    @property
    def tokens(self) -> Tensor:
        """[T * K] int32: the token of each row."""
        return self._tokens[: self._num_tokens * self._rows.shape[1]]

    @property
    def rows(self) -> Tensor:
        """[T, K] int32: the row of each choice."""
        return self._rows[: self._num_tokens]

    def offsets(self, group: Group) -> Tensor:
        """[count + 1] int32: the group's experts begin and end there."""
        return self._offsets[group.first : group.first + group.count + 1]


@dataclass(frozen=True)
class Mixture:
    """One layer's experts over T tokens; all scratch has a row for every choice."""

    chip: Chip
    experts: Experts
    x: Activations  # [T, H]
    weights: Tensor  # [T, K] float32
    hidden: Tensor  # [T * K, I] bfloat16
    codes: Activations | None  # [T * K, I]: what `hidden` becomes where experts are FP8 and the chip multiplies that
    y: Tensor  # [T * K, H] bfloat16
    out: Tensor  # [T, H] float32
    stay: Callable[[Launch], None] | None = None  # runs products by programs that stay; None: each has its own

    def add(self, group: Group, choices: Choices) -> None:
        """The group's part of every token's sum; the first one of a layer overwrites."""
        offsets, rows = choices.offsets(group), self._expected_rows(group)
        parts = list(zip(self.experts.parts, group.data, strict=True))
        for part, data in parts:
            slot = _slot(data, group.count)
            for (first, gate), (_, up) in zip(_pieces(slot, part.gate), _pieces(slot, part.up), strict=True):
                hidden = self.hidden[:, first : first + gate.rows]
                self._run(
                    gate_up(self.chip, self.x, choices.tokens, offsets, gate, up, hidden, rows, stays=self._stays)
                )
        between = Activations(self.hidden)
        if self.codes is not None and self.codes.scale is not None:
            quantise(self.hidden, self.codes.values, self.codes.scale, window=offsets).run()
            between = self.codes
        for part, data in parts:
            for first, weights in _pieces(_slot(data, group.count), part.down):
                y = self.y[:, first : first + weights.rows]
                self._run(down(self.chip, between, offsets, weights, y, rows, stays=self._stays))
        combine(self.y, choices.rows, self.weights, self.out, not group.overwrites, offsets).run()

    @property
    def _stays(self) -> bool:
        return self.stay is not None

    def _run(self, product: Launch) -> None:
        product.run() if self.stay is None else self.stay(product)

    def _expected_rows(self, group: Group) -> int:
        """Of an expert, as if all were chosen equally often; it only picks the tile."""
        return ceil_div(len(self.hidden), self.experts.num_experts)


def _slot(data: Tensor, count: int) -> Tensor:
    """[count, stride] bytes."""
    return data.view(count, -1)


def _pieces(slot: Tensor, place: Placement) -> Iterator[tuple[int, Weights]]:
    """First row, and rows: as one piece, or as two where a part begins within a block that another part begins.

    The scales of both pieces then begin with a row of their own.
    """
    before = place.first_row % BLOCK
    cut = min(BLOCK - before, place.rows) if before and place.scale_offset is not None else 0
    if cut:
        yield place.first_row, weights_in(slot, place.offset, place.scale_offset, cut, place.cols)
    if cut < place.rows:
        scale = place.scale_offset
        if cut and scale is not None:
            scale += 4 * ceil_div(place.cols, BLOCK)
        offset = place.offset + cut * place.cols  # cut only where a weight is one byte
        yield place.first_row + cut, weights_in(slot, offset, scale, place.rows - cut, place.cols)

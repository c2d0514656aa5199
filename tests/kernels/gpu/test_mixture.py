"""A whole mixture of experts on a GPU, from logits to the sum over experts, against the reference dialect's."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from arrays import NEAR, Matrix, error, matrix, randn, slot_of

from localmoe.kernels.gpu.combine import combine, sort_by_expert
from localmoe.kernels.gpu.experts import down, gate_up
from localmoe.kernels.gpu.matrix import FP8, Activations, Weights
from localmoe.kernels.gpu.quantise import quantise
from localmoe.kernels.gpu.route import route
from localmoe.kernels.ops import Router
from localmoe.kernels.reference import ReferenceOps, Run

TOKENS, HIDDEN, INTER, EXPERTS, TOP_K, GROUP = 9, 200, 72, 4, 3, 2
TWICE_QUANTISED = 6e-2  # relative: one quantisation costs 2.6e-2; gate and up share one, and down has its own


@dataclass
class Place:
    offset: int
    scale_offset: int | None
    rows: int
    cols: int
    first_row: int = 0

    @property
    def dtype(self) -> str:
        return "bf16" if self.scale_offset is None else "fp8"


@dataclass
class Part:
    blob: np.ndarray
    gate: Place
    up: Place
    down: Place


@dataclass
class Layer:
    num_experts: int
    parts: tuple[Part, ...]


def layer(matrices: list[list[Matrix]]) -> Layer:
    """The experts as a store has them."""
    rows, places = [], []
    for expert in matrices:
        row, places = b"", []
        for m in expert:
            offset, row = len(row), row + m.weight.tobytes()
            row += bytes(-len(row) % 4)
            scale = None if m.scale is None else len(row)
            row += b"" if m.scale is None else m.scale.tobytes()
            places.append(Place(offset, scale, *m.weight.shape))
        rows.append(np.frombuffer(row, np.uint8))
    return Layer(len(matrices), (Part(np.stack(rows), *places),))


def activations(x: torch.Tensor, quantised: bool) -> Activations:
    if not quantised:
        return Activations(x.bfloat16())
    codes = torch.empty(*x.shape, device=x.device).to(FP8)
    scale = torch.empty(len(x), -(-x.shape[1] // 128), device=x.device)
    quantise(x, codes, scale).run()
    return Activations(codes, scale)


def mixture(chip, x, logits, router, groups: list[list[Weights]], quantised: bool) -> torch.Tensor:
    """As a GPU plan runs it: all groups of experts one after the other, then one sum."""
    ids = torch.empty(TOKENS, TOP_K, dtype=torch.int32, device=x.device)
    weights = torch.empty(TOKENS, TOP_K, device=x.device)
    route(logits, router, None, ids, weights).run()
    found = sort_by_expert(ids, 0, EXPERTS)
    hidden = torch.zeros(TOKENS * TOP_K, INTER, dtype=torch.bfloat16, device=x.device)
    y = torch.full((TOKENS * TOP_K, HIDDEN), torch.nan, dtype=torch.bfloat16, device=x.device)
    into = activations(x, quantised)
    for n, (gate, up, _) in enumerate(groups):
        offsets = found.offsets[n * GROUP : (n + 1) * GROUP + 1]
        gate_up(chip, into, found.tokens, offsets, gate, up, hidden, 16).run()
    between = activations(hidden, quantised)
    for n, (_, _, out) in enumerate(groups):
        down(chip, between, found.offsets[n * GROUP : (n + 1) * GROUP + 1], out, y, 16).run()
    total = torch.zeros(TOKENS, HIDDEN, device=x.device)
    combine(y, found.rows, weights, total).run()
    return total


@pytest.mark.parametrize(("fp8", "quantised"), [(True, True), (True, False), (False, False)])
def test_a_mixture_is_near_the_reference(chip, fp8, quantised, device):
    if quantised and not chip.has_fp8:
        pytest.skip(f"{chip.name} has no FP8 matrix units")
    matrices = [
        [matrix(INTER, HIDDEN, fp8, e), matrix(INTER, HIDDEN, fp8, e + 50), matrix(HIDDEN, INTER, fp8, e + 90)]
        for e in range(EXPERTS)
    ]
    groups = [slot_of(matrices[n : n + GROUP], device) for n in range(0, EXPERTS, GROUP)]
    x, logits, router = randn(TOKENS, HIDDEN).bfloat16(), randn(TOKENS, EXPERTS, seed=1), Router(EXPERTS, TOP_K)
    ours = mixture(chip, x.to(device), logits.to(device), router, groups, quantised)
    ops = ReferenceOps(Run(torch.arange(TOKENS), torch.arange(TOKENS).float(), [], False, None, None))
    truth = ops.experts(x.float(), ops.route(logits, router), layer(matrices))
    assert error(ours, truth) <= (TWICE_QUANTISED if quantised else NEAR)

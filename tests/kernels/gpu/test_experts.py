"""Grouped products over experts, against plain FP32 products with the same weights and activations."""

import numpy as np
import pytest
import torch
from arrays import NEAR, error, floats, matrix, plain, quantised, randn, slot_of
from torch.nn import functional

from localmoe.kernels.gpu import experts

FORMS = ["fp8", "decoded", "bf16"]
SLOW = pytest.mark.slow
SHAPES = [  # experts, sorted rows, hidden, inter; rows an expert, as the launcher is told
    ((1, 1, 128, 128), 1),
    ((4, 26, 200, 72), 16),
    ((3, 40, 128, 136), 64),
    ((1, 150, 128, 72), 1),  # more tiles of rows than one band has
    pytest.param((3, 300, 256, 384), 300, marks=SLOW),
    pytest.param((3, 420, 128, 136), 1, marks=SLOW),
    pytest.param((5, 70, 200, 72), 64, marks=SLOW),
    pytest.param((4, 33, 130, 257), 16, marks=SLOW),
    pytest.param((9, 200, 384, 100), 200, marks=SLOW),
    pytest.param((40, 64, 96, 33), 4, marks=SLOW),
]


def operands(chip, form, shape, device):
    num_experts, num_rows, hidden, inter = shape
    if form == "fp8" and not chip.has_fp8:
        pytest.skip(f"{chip.name} has no FP8 matrix units")
    random = np.random.default_rng(num_rows)
    fp8 = form != "bf16"
    matrices = [
        [matrix(inter, hidden, fp8, e), matrix(inter, hidden, fp8, e + 50), matrix(hidden, inter, fp8, e + 90)]
        for e in range(num_experts)
    ]
    expert = np.sort(random.choice(max(num_experts - 1, 1), num_rows))  # the last of several has no rows
    offsets = np.searchsorted(expert, np.arange(num_experts + 1)).astype(np.int32)
    tokens = random.integers(0, 9, num_rows).astype(np.int32)
    return matrices, slot_of(matrices, device), expert, torch.from_numpy(offsets).to(device), torch.from_numpy(tokens)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "rows"), SHAPES)
def test_gate_and_up_are_joined_by_silu(chip, form, shape, rows, device):
    matrices, (gate, up, _), expert, offsets, tokens = operands(chip, form, shape, device)
    x, values = (quantised if form == "fp8" else plain)(randn(9, shape[2]), device)
    out = torch.full((len(tokens), shape[3]), torch.nan, dtype=torch.bfloat16, device=device)
    experts.gate_up(chip, x, tokens.to(device), offsets, gate, up, out, rows).run()
    truth = torch.stack(
        [
            functional.silu(floats(matrices[e][0]) @ values[t]) * (floats(matrices[e][1]) @ values[t])
            for e, t in zip(expert, tokens, strict=True)
        ]
    )
    assert error(out, truth) <= NEAR


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "rows"), SHAPES)
def test_down_multiplies_each_row_by_its_expert(chip, form, shape, rows, device):
    matrices, (_, _, down), expert, offsets, tokens = operands(chip, form, shape, device)
    x, values = (quantised if form == "fp8" else plain)(randn(len(tokens), shape[3]), device)
    out = torch.full((len(tokens), shape[2]), torch.nan, dtype=torch.bfloat16, device=device)
    experts.down(chip, x, offsets, down, out, rows).run()
    truth = torch.stack([floats(matrices[e][2]) @ x for e, x in zip(expert, values, strict=True)])
    assert error(out, truth) <= NEAR


def test_rows_of_other_groups_stay_as_they_are(chip, device):
    _, (_, _, down), _, _, _ = operands(chip, "bf16", (2, 10, 128, 128), device)
    x, _ = plain(randn(10, 128), device)
    out = torch.zeros(10, 128, dtype=torch.bfloat16, device=device)
    experts.down(chip, x, torch.tensor([3, 5, 8], dtype=torch.int32, device=device), down, out, 16).run()
    touched = out.float().abs().sum(1) > 0
    assert touched.tolist() == [3 <= row < 8 for row in range(10)]


def test_arguments_that_do_not_fit_are_refused(chip, device):
    _, (gate, up, down), _, offsets, tokens = operands(chip, "bf16", (2, 10, 128, 192), device)
    x, _ = plain(randn(9, 128), device)
    out = torch.zeros(10, 192, dtype=torch.bfloat16, device=device)
    with pytest.raises(AssertionError, match="gate and up differ"):
        experts.gate_up(chip, x, tokens.to(device), offsets, gate, down, out, 16)
    with pytest.raises(AssertionError, match=r"offsets: shape \(2,\), expected \(3,\)"):
        experts.gate_up(chip, x, tokens.to(device), offsets[:2], gate, up, out, 16)
    with pytest.raises(AssertionError, match=r"output: torch.float64"):
        experts.gate_up(chip, x, tokens.to(device), offsets, gate, up, out.double(), 16)
    with pytest.raises(AssertionError, match=r"tokens: torch.int64"):
        experts.gate_up(chip, x, tokens.long().to(device), offsets, gate, up, out, 16)

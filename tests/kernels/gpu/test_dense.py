"""Dense products and those of single heads, against plain FP32 products with the same weights and activations."""

import pytest
import torch
from arrays import NEAR, NEAR_FP32, error, floats, matrix, plain, quantised, randn, slot_of

from localmoe.kernels.gpu.absorb import absorb_queries, expand_outputs
from localmoe.kernels.gpu.chips import CHIPS
from localmoe.kernels.gpu.linear import linear, num_splits
from localmoe.kernels.gpu.matrix import FP8, Activations, Weights
from localmoe.kernels.gpu.quantise import quantise
from localmoe.kernels.ops import MlaShape

SLOW = pytest.mark.slow


@pytest.mark.parametrize("form", ["fp8", "decoded", "bf16"])
@pytest.mark.parametrize(
    ("tokens", "rows", "cols", "splits"),
    [
        (1, 72, 1024, 2),
        (20, 130, 200, 1),
        (3, 200, 1100, 4),
        pytest.param(300, 257, 384, 1, marks=SLOW),
        pytest.param(1100, 136, 128, 1, marks=SLOW),
        pytest.param(17, 576, 2048, 4, marks=SLOW),
        pytest.param(65, 128, 130, 2, marks=SLOW),
        pytest.param(2, 33, 700, 8, marks=SLOW),
    ],
)
def test_a_linear_multiplies_in_any_number_of_splits(chip, form, tokens, rows, cols, splits, device):
    if form == "fp8" and not chip.has_fp8:
        pytest.skip(f"{chip.name} has no FP8 matrix units")
    truth = matrix(rows, cols, form != "bf16")
    (weights,) = slot_of([[truth]], device)
    x, values = (quantised if form == "fp8" else plain)(randn(tokens, cols, seed=1), device)
    out = torch.full((tokens, rows), torch.nan, dtype=torch.bfloat16, device=device)
    partial = torch.full((splits, tokens, rows), torch.nan, device=device) if splits > 1 else None
    for launch in linear(chip, x, weights, out, partial):
        launch.run()
    assert error(out, values @ floats(truth).T) <= NEAR


def test_quantising_and_multiplying_stays_near_fp32(chip, device):
    if not chip.has_fp8:
        pytest.skip(f"{chip.name} has no FP8 matrix units")
    truth, x = matrix(64, 512, True), randn(5, 512, seed=1)
    (weights,) = slot_of([[truth]], device)
    codes, scale = torch.zeros(5, 512, device=device).to(FP8), torch.zeros(5, 4, device=device)
    quantise(x.to(device), codes, scale).run()
    out = torch.zeros(5, 64, device=device)
    linear(chip, Activations(codes, scale), weights, out)[0].run()
    assert error(out, x @ floats(truth).T) <= NEAR_FP32


def test_few_rows_are_split_until_the_chip_is_full():
    def weights(rows: int, cols: int) -> Weights:
        return Weights(torch.empty(1, rows, cols, dtype=torch.bfloat16, device="meta"))

    assert num_splits(CHIPS[120], 1, weights(576, 7168), False) == 8  # 14 blocks of four at least
    assert num_splits(CHIPS[120], 1, weights(7168, 16384), False) == 2
    assert num_splits(CHIPS[120], 4096, weights(7168, 16384), False) == 1
    assert num_splits(CHIPS[86], 1, weights(64, 300), False) == 1


@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize(
    ("shape", "tokens"), [(MlaShape(2, 128, 64, 128, 512, 1.0), 2), (MlaShape(3, 24, 12, 40, 200, 1.0), 17)]
)
def test_heads_go_into_the_latent_space_and_back(fp8, shape, tokens, device):
    truth = matrix(shape.num_heads * (shape.nope_dim + shape.v_dim), shape.rank, fp8)
    (kv_b,) = slot_of([[truth]], device)
    by_head = floats(truth).view(shape.num_heads, -1, shape.rank)
    q = randn(tokens, shape.num_heads, shape.nope_dim + shape.rope_dim).bfloat16()
    wide = torch.zeros(tokens, shape.num_heads, shape.rank + shape.rope_dim, dtype=torch.bfloat16, device=device)
    absorb_queries(q.to(device)[..., : shape.nope_dim], kv_b, shape, wide[..., : shape.rank]).run()
    expected = torch.einsum("tnd,ndr->tnr", q[..., : shape.nope_dim].float(), by_head[:, : shape.nope_dim])
    assert error(wide[..., : shape.rank], expected) <= NEAR
    latent = randn(tokens, shape.num_heads, shape.rank, seed=2).bfloat16()
    out = torch.zeros(tokens, shape.num_heads, shape.v_dim, dtype=torch.bfloat16, device=device)
    expand_outputs(latent.to(device), kv_b, shape, out).run()
    assert error(out, torch.einsum("tnr,nvr->tnv", latent.float(), by_head[:, shape.nope_dim :])) <= NEAR


def test_arguments_that_do_not_fit_are_refused(chip, device):
    (weights,) = slot_of([[matrix(64, 128, True)]], device)
    x, _ = plain(randn(3, 100), device)
    with pytest.raises(AssertionError, match="activations have 100 columns, weights 128"):
        linear(chip, x, weights, torch.zeros(3, 64, device=device))
    with pytest.raises(AssertionError, match="scales go with FP8 weights"):
        Weights(weights.weight)
    with pytest.raises(AssertionError, match="not row-major"):
        Weights(weights.weight.transpose(1, 2), weights.scale)
    if not chip.has_fp8:
        x, _ = quantised(randn(3, 128), device)
        with pytest.raises(AssertionError, match="sm_86 has no FP8 matrix units"):
            linear(chip, x, weights, torch.zeros(3, 64, device=device))

"""Kernels that work on each token by itself: quantisation, sorting and combining, routing, RMSNorm, RoPE."""

import numpy as np
import pytest
import torch
from arrays import NEAR, error, quantised, randn

from localmoe.kernels.gpu import combine, latent, norm, quantise, route
from localmoe.kernels.gpu.matrix import FP8
from localmoe.kernels.ops import Rope, Router
from localmoe.kernels.reference import ReferenceOps, Run


def reference(count: int, positions: torch.Tensor | None = None) -> ReferenceOps:
    positions = torch.arange(count).float() if positions is None else positions.float()
    return ReferenceOps(Run(torch.arange(count), positions, [], False, None, None))


@pytest.mark.parametrize(("rows", "cols"), [(1, 128), (9, 300), (17, 72)])
def test_quantised_activations_are_those_of_torch(rows, cols, device):
    x = randn(rows, cols) * torch.exp(3 * randn(rows, 1, seed=1))
    x[0, :] = 0
    truth, _ = quantised(x, torch.device("cpu"))
    codes = torch.zeros(rows, cols, device=device).to(FP8)
    scale = torch.full((rows, -(-cols // 128)), torch.nan, device=device)
    quantise.quantise(x.to(device), codes, scale).run()
    assert torch.equal(codes.cpu().view(torch.uint8) & 0x7F, truth.values.view(torch.uint8) & 0x7F)
    assert torch.equal(scale.cpu()[1:], truth.scale[1:])


def test_scales_can_be_powers_of_two(device):
    x = randn(5, 256) * torch.tensor([1.0, 448.0, 1e-3, 0, 3e5])[:, None]
    x[1, 0] = 448 * 4  # exactly one already
    codes, scale = torch.zeros(5, 256, device=device).to(FP8), torch.zeros(5, 2, device=device)
    quantise.quantise(x.bfloat16().to(device), codes, scale, power_of_two=True).run()
    found = scale.cpu()
    assert found[1, 0] == 4
    real = found[[0, 1, 2, 4]]
    assert torch.equal(real, 2 ** real.log2().round())
    most = x.bfloat16().float().view(5, 2, 128).abs().amax(-1)
    assert (most <= 448 * found).all()
    assert (most[[0, 1, 2, 4]] > 224 * real).all()
    values = codes.cpu().float().view(5, 2, 128) * found[..., None]
    assert error(values.view(5, 256), x) <= 4e-2


def test_only_the_rows_of_a_group_are_quantised(device):
    """Others may be, where they share a block with them; far ones stay."""
    x, window = randn(40, 256), torch.tensor([17, 20, 26], dtype=torch.int32, device=device)
    codes = torch.zeros(40, 256, device=device).to(FP8)
    scale = torch.full((40, 2), torch.nan, device=device)
    quantise.quantise(x.to(device), codes, scale, window=window).run()
    truth, _ = quantised(x, torch.device("cpu"))
    assert torch.equal(scale.cpu()[17:26], truth.scale[17:26])
    assert torch.equal(codes.cpu().view(torch.uint8)[17:26] & 0x7F, truth.values.view(torch.uint8)[17:26] & 0x7F)
    assert scale.cpu()[:16].isnan().all() and scale.cpu()[32:].isnan().all()


def test_gates_are_multiplied(device):
    gate, up = randn(3, 1100), randn(3, 1100, seed=1)
    ours = gate.bfloat16().to(device)
    norm.silu_mul(ours, up.bfloat16().to(device)).run()
    truth = torch.nn.functional.silu(gate.bfloat16().float()) * up.bfloat16().float()
    assert error(ours, truth) <= NEAR


def test_tokens_are_sorted_by_expert_and_those_of_others_come_last(device):
    ids = torch.tensor([[3, 0], [5, 3], [2, 9], [3, 2]], dtype=torch.int32, device=device)
    found = combine.sort_by_expert(ids, 2, 3)  # experts 2, 3, 4
    assert found.offsets.tolist() == [0, 2, 5, 5]
    assert found.tokens[:5].tolist() == [2, 3, 0, 1, 3]
    assert found.rows.tolist() == [[2, -1], [-1, 3], [0, -1], [4, 1]]


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_token_adds_what_its_experts_made(add, dtype, device):
    y, weights, start = randn(20, 1100).bfloat16(), randn(7, 3).abs(), randn(7, 1100, seed=2)
    rows = torch.from_numpy(np.random.default_rng(0).integers(-1, 20, (7, 3)).astype(np.int32))
    rows[0], rows[rows == 0], y[0] = -1, 7, torch.nan
    out = start.to(dtype).to(device)
    combine.combine(y.to(device), rows.to(device), weights.to(device), out, add).run()
    truth = start.to(dtype).float() if add else torch.zeros(7, 1100)
    for t, k in np.ndindex(7, 3):
        if rows[t, k] >= 0:
            truth[t] += weights[t, k] * y[rows[t, k]].float()
    assert error(out, truth) <= NEAR


@pytest.mark.parametrize("add", [False, True])
def test_each_token_adds_what_the_experts_of_a_group_made(add, device):
    y, weights, start = randn(9, 300).bfloat16(), randn(3, 3).abs(), randn(3, 300, seed=2)
    rows = torch.tensor([[0, 4, 5], [1, 2, 8], [3, 6, 7]], dtype=torch.int32)
    window = torch.tensor([3, 3, 6], dtype=torch.int32, device=device)  # rows 3, 4 and 5
    y[[0, 1, 2, 6, 7, 8]] = torch.nan
    out = start.clone().to(device)
    combine.combine(y.to(device), rows.to(device), weights.to(device), out, add, window).run()
    truth = start.clone() if add else torch.zeros(3, 300)
    for t, k in ((0, 1), (0, 2), (2, 0)):
        truth[t] += weights[t, k] * y[rows[t, k]].float()
    assert error(out, truth) <= NEAR


ROUTERS = {
    "v3": Router(256, 8, 8, 4, scale=2.5, bias=np.zeros(256, np.float32)),
    "k2": Router(384, 8, scale=2.827, bias=np.zeros(384, np.float32)),
    "v2-lite": Router(64, 6, scoring="softmax", normalize=False),
    "v2": Router(160, 6, 8, 3, scoring="softmax", group_score="max", normalize=False, scale=16.0),
    "odd": Router(18, 3, 3, 2, bias=np.zeros(18, np.float32)),
    "all": Router(5, 5),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_chooses_as_the_reference_does(name, device):
    router, random = ROUTERS[name], np.random.default_rng(1)
    if router.bias is not None:
        router.bias[:] = 0.3 * random.standard_normal(router.num_experts) - 2  # selection is negative at times
    logits = 2 * randn(6, router.num_experts)
    logits[0] = 0  # equal scores go to the lower id
    ids = torch.full((6, router.top_k), -7, dtype=torch.int32, device=device)
    weights = torch.full((6, router.top_k), torch.nan, device=device)
    bias = None if router.bias is None else torch.from_numpy(router.bias).to(device)
    route.route(logits.to(device), router, bias, ids, weights).run()
    truth = reference(6).route(logits, router)
    assert torch.equal(ids.cpu().long(), truth.ids)
    assert error(weights, truth.weights) <= 1e-5


@pytest.mark.parametrize(
    ("rows", "cols", "dtype"), [(1, 7168, torch.bfloat16), (5, 1536, torch.float32), (3, 72, None)]
)
def test_rms_norm(rows, cols, dtype, device):
    weight, x = 1 + 0.1 * randn(cols), randn(rows, cols, seed=3)
    x = x if dtype is None else x.to(dtype)
    out = torch.empty(rows, cols, dtype=torch.bfloat16, device=device)
    norm.rms_norm(x.to(device), weight.to(device), 1e-6, out).run()
    assert error(out, reference(rows).rms_norm(x.float(), weight.numpy(), 1e-6)) <= NEAR


def test_rms_norm_of_part_of_a_row_in_place(device):
    weight, wide = 1 + 0.1 * randn(512), randn(3, 576).to(device)
    truth = reference(3).rms_norm(wide[:, :512].cpu(), weight.numpy(), 1e-6)
    before = wide[:, 512:].clone()
    norm.rms_norm(wide[:, :512], weight.to(device), 1e-6, wide[:, :512]).run()
    assert error(wide[:, :512], truth) <= 1e-6
    assert torch.equal(wide[:, 512:], before)


def test_rms_norm_adds_the_residual_first(device):
    x, weight, residual = randn(4, 200).bfloat16(), 1 + 0.1 * randn(200), randn(4, 200, seed=8).to(device)
    truth = residual.cpu() + x.float()
    out = torch.empty(4, 200, dtype=torch.bfloat16, device=device)
    norm.rms_norm(x.to(device), weight.to(device), 1e-6, out, residual).run()
    assert error(residual, truth) <= 1e-6
    assert error(out, reference(4).rms_norm(truth, weight.numpy(), 1e-6)) <= NEAR


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("heads", "head_dim", "dim"), [(16, 192, 64), (1, 64, 64), (3, 20, 12)])
def test_the_last_elements_of_heads_are_rotated(interleaved, heads, head_dim, dim, device):
    inv_freq = (10000.0 ** -(np.arange(dim // 2) * 2 / dim)).astype(np.float32)
    rope = Rope(inv_freq, 1.3, interleaved)
    positions, x = torch.tensor([0, 1, 777, 160_000]), randn(4, heads * head_dim)
    truth = reference(4, positions).rope(x, rope, head_dim)
    ours = x.clone().to(device)
    table = norm.rotation(positions.to(device), rope)
    norm.rotate(ours, table, head_dim, interleaved).run()
    assert error(ours, truth) <= 1e-5
    ours = x.bfloat16().to(device)
    norm.rotate(ours, table, head_dim, interleaved).run()
    assert error(ours, truth) <= NEAR


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("rank", "dim"), [(512, 64), (72, 12)])
def test_latents_are_normed_rotated_and_appended(interleaved, rank, dim, device):
    kv, weight = randn(5, rank + dim).bfloat16(), 1 + 0.1 * randn(rank, seed=1)
    rope = Rope((10000.0 ** -(np.arange(dim // 2) * 2 / dim)).astype(np.float32), 1.0, interleaved)
    positions = torch.tensor([62, 63, 64, 65, 5])
    table = norm.rotation(positions.to(device), rope)
    rows = torch.tensor([3 * 64 + 62, 3 * 64 + 63, 64, 65, latent.NO_ROW], dtype=torch.int32, device=device)
    cache = torch.zeros(4, 64, rank + dim, dtype=torch.bfloat16, device=device)
    latent.append_latent(kv.to(device), weight.to(device), 1e-6, table, interleaved, rows, cache).run()
    ops = reference(5, positions)
    truth = torch.cat(
        [
            ops.rms_norm(kv[:, :rank].float(), weight.numpy(), 1e-6),
            ops.rope(kv[:, rank:].float(), rope, dim),
        ],
        dim=1,
    )
    assert error(cache[3, 62:], truth[:2]) <= NEAR
    assert error(cache[1, :2], truth[2:4]) <= NEAR
    cache[3, 62:], cache[1, :2] = 0, 0
    assert not cache.any()


def test_latents_are_read_back_in_the_order_of_the_session(device):
    cache = torch.arange(4 * 64 * 3).view(4, 64, 3).to(device)
    found = latent.gather_latents(cache, torch.tensor([2, 0, 1], dtype=torch.int32, device=device), 70)
    assert torch.equal(found, torch.cat([cache[2], cache[0, :6]]))

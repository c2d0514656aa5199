"""Attention over the latent cache, against the reference dialect's with the same BF16 queries, rows and weights."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from arrays import NEAR, Matrix, error, randn

from localmoe.kernels.gpu.chips import CHIPS
from localmoe.kernels.gpu.decode_attention import MAX_SPLITS, decode_attention, num_splits
from localmoe.kernels.gpu.prefill_attention import prefill_attention
from localmoe.kernels.ops import PAGE_TOKENS, MlaShape, Segment
from localmoe.kernels.reference import ReferenceOps, Run, dequantised

SLOW = pytest.mark.slow
SHAPES = {
    "v3": MlaShape(2, 128, 64, 128, 512, 192**-0.5),
    "tiny": MlaShape(3, 24, 12, 40, 72, 0.2),
    "k2": MlaShape(40, 32, 16, 32, 64, 0.15),
}


@dataclass
class Table:
    pages: np.ndarray


@dataclass
class Cache:
    data: np.ndarray


def bf16(x: torch.Tensor) -> torch.Tensor:
    """The nearest BF16 values, as FP32."""
    return x.bfloat16().float()


def cached(shape: MlaShape, num_pages: int) -> torch.Tensor:
    """[pages, 64, width] of BF16 values."""
    return bf16(randn(num_pages, PAGE_TOKENS, shape.rank + shape.rope_dim, seed=5))


def truth(shape: MlaShape, q: torch.Tensor, data: torch.Tensor, pages: list[int], kv_b: Matrix) -> torch.Tensor:
    """The reference's attention of the last len(q) of a session's tokens: `data` ends with them."""
    start = int(data.shape[0]) - len(q)
    segment = Segment(Table(np.array(pages, np.int32)), start, len(q))
    paged = np.zeros((max(pages) + 1, PAGE_TOKENS, data.shape[1]), np.float32)
    for p in range(len(data)):
        paged[pages[p // PAGE_TOKENS], p % PAGE_TOKENS] = data[p].numpy()
    run = Run(torch.arange(len(q)), torch.arange(start, start + len(q)).float(), [segment], False, None, None)
    return ReferenceOps(run).mla_attention(q, Cache(paged), kv_b, shape)


def kv_b(shape: MlaShape) -> Matrix:
    return Matrix((randn(shape.num_heads * (shape.nope_dim + shape.v_dim), shape.rank, seed=4) / 8).numpy())


def plain_attention(shape: MlaShape, q: torch.Tensor, kv: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Of given keys and values, in FP32."""
    q, kv = q.view(len(q), shape.num_heads, -1), kv.view(len(kv), shape.num_heads, -1)
    keys = torch.cat([kv[..., : shape.nope_dim], key[:, None].expand(-1, shape.num_heads, -1)], dim=-1)
    scores = torch.einsum("tnd,lnd->ntl", q, keys) * shape.softmax_scale
    later = torch.arange(len(kv)) > torch.arange(len(kv) - len(q), len(kv))[:, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return torch.einsum("ntl,lnv->tnv", weights, kv[..., shape.nope_dim :]).flatten(1)


@pytest.mark.parametrize(
    ("name", "lengths", "splits"),
    [
        ("v3", [130], 2),
        ("tiny", [1, 64, 65, 200], 4),
        ("k2", [40, 129], 1),
        pytest.param("v3", [1, 63, 700], 8, marks=SLOW),
        pytest.param("k2", [500, 64, 128, 1, 77], 16, marks=SLOW),
    ],
)
def test_decode_attends_to_all_cached_tokens(chip, name, lengths, splits, device):
    shape = SHAPES[name]
    width, most = shape.rank + shape.rope_dim, max(lengths)
    num_pages = sum(-(-n // PAGE_TOKENS) for n in lengths)
    cache = cached(shape, num_pages)
    free = list(np.random.default_rng(0).permutation(num_pages))
    pages = [[int(free.pop()) for _ in range(-(-n // PAGE_TOKENS))] for n in lengths]
    table = torch.full((len(lengths), -(-most // PAGE_TOKENS)), -1, dtype=torch.int32)
    poisoned = cache.clone()
    for b, (length, found) in enumerate(zip(lengths, pages, strict=True)):
        table[b, : len(found)] = torch.tensor(found)
        poisoned[found[-1], (length - 1) % PAGE_TOKENS + 1 :] = torch.nan
    q = bf16(randn(len(lengths), shape.num_heads, shape.nope_dim + shape.rope_dim, seed=2) * 2)
    weights = kv_b(shape)
    by_head = dequantised(weights).view(shape.num_heads, -1, shape.rank)
    absorbed = torch.einsum("bnd,ndr->bnr", q[..., : shape.nope_dim], by_head[:, : shape.nope_dim])
    absorbed = torch.cat([absorbed, q[..., shape.nope_dim :]], dim=-1).bfloat16()
    partial = torch.full((len(lengths), splits, shape.num_heads, shape.rank), torch.nan, device=device)
    partial_log = torch.full((len(lengths), splits, shape.num_heads), torch.nan, device=device)
    out = torch.full((len(lengths), shape.num_heads, shape.rank), torch.nan, dtype=torch.bfloat16, device=device)
    operands = absorbed.to(device), poisoned.bfloat16().to(device), table.to(device)
    counts = torch.tensor(lengths, dtype=torch.int32, device=device)
    for launch in decode_attention(chip, *operands, counts, shape.softmax_scale, partial, partial_log, out):
        launch.run()
    assert cache.shape[2] == width
    for b, (length, found) in enumerate(zip(lengths, pages, strict=True)):
        rows = cache[found].view(-1, width)[:length]
        latent = rows[:, : shape.rank]
        scores = absorbed[b].float() @ rows.T * shape.softmax_scale
        assert error(out[b], scores.softmax(-1) @ latent) <= NEAR
        expanded = torch.einsum("nr,nvr->nv", out[b].cpu().float(), by_head[:, shape.nope_dim :]).flatten()[None]
        assert error(expanded, truth(shape, q[b].flatten()[None], rows, found, weights)) <= 2 * NEAR  # q was rounded


def test_splits_fill_the_chip_and_no_more():
    chip = CHIPS[120]
    assert num_splits(chip, 1, 128, 32_768) == 32
    assert num_splits(chip, 8, 128, 32_768) == 4
    assert num_splits(chip, 1, 128, 100) == 1
    assert num_splits(chip, 1, 16, 10**6) == MAX_SPLITS


@pytest.mark.parametrize(
    ("name", "prefix", "count"),
    [
        ("v3", 0, 40),
        ("tiny", 70, 33),
        ("tiny", 0, 1),
        ("tiny", 31, 140),
        pytest.param("v3", 100, 200, marks=SLOW),
        pytest.param("k2", 33, 130, marks=SLOW),
        pytest.param("v3", 127, 1, marks=SLOW),
        pytest.param("v3", 0, 129, marks=SLOW),
    ],
)
def test_prefill_attends_to_the_prefix_and_to_what_is_not_later(chip, name, prefix, count, device):
    shape = SHAPES[name]
    length = prefix + count
    pages = list(range(-(-length // PAGE_TOKENS)))
    rows = cached(shape, len(pages)).view(-1, shape.rank + shape.rope_dim)[:length]
    weights = kv_b(shape)
    kv = (rows[:, : shape.rank] @ dequantised(weights).T).bfloat16()
    q = bf16(randn(count, shape.num_heads * (shape.nope_dim + shape.rope_dim), seed=3) * 2)
    key = rows.bfloat16().to(device)[:, shape.rank :]
    out = torch.full((count, shape.num_heads * shape.v_dim), torch.nan, dtype=torch.bfloat16, device=device)
    prefill_attention(chip, q.bfloat16().to(device), kv.to(device), key, shape, out).run()
    assert error(out, plain_attention(shape, q, kv.float(), rows[:, shape.rank :])) <= NEAR
    assert error(out, truth(shape, q, rows, pages, weights)) <= 2 * NEAR  # keys and values were rounded


def test_prefill_takes_some_heads_at_a_time(chip, device):
    shape = SHAPES["k2"]
    q = randn(5, 4 * 48).bfloat16().to(device)
    kv = randn(9, 4 * 64, seed=1).bfloat16().to(device)
    key, out = randn(9, 16, seed=2).bfloat16().to(device), torch.zeros(5, 4 * 32, dtype=torch.bfloat16, device=device)
    prefill_attention(chip, q, kv, key, shape, out).run()
    half = torch.zeros(5, 2 * 32, dtype=torch.bfloat16, device=device)
    prefill_attention(chip, q[:, 96:], kv[:, 128:], key, shape, half).run()
    assert torch.equal(half, out[:, 64:])


def test_arguments_that_do_not_fit_are_refused(chip, device):
    shape, q = SHAPES["k2"], torch.zeros(5, 2 * 48, dtype=torch.bfloat16)
    kv, key, out = (torch.zeros(n, d, dtype=torch.bfloat16) for n, d in ((9, 128), (9, 16), (5, 64)))
    with pytest.raises(AssertionError, match=r"keys and values: shape \(9, 100\), expected \(9, 128\)"):
        prefill_attention(chip, q, kv[:, :100], key, shape, out)
    with pytest.raises(AssertionError, match="5 queries of 4 tokens"):
        prefill_attention(chip, q, kv[:4], key[:4], shape, out)
    with pytest.raises(AssertionError, match=r"queries: torch.float32, expected torch.bfloat16"):
        prefill_attention(chip, q.float(), kv, key, shape, out)

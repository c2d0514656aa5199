"""Causal attention of many queries over keys and values expanded for each head, in one pass (FlashAttention-2).

Keys come in two pieces: what was expanded from the latents for each head, and the rotated piece that heads share.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.decode_attention import LOG2_E
from localmoe.kernels.gpu.launch import Argument, Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import check, check_together
from localmoe.kernels.gpu.tiles import PREFILL_ATTENTION
from localmoe.kernels.ops import MlaShape


@triton.jit
def _load_part(at, row_inside, col, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """A tile; masked by rows if MASKED, by columns if they are padded."""
    if MASKED:
        if WIDTH == PADDED:
            return tl.load(at, mask=row_inside, other=0.0)
        else:
            return tl.load(at, mask=row_inside & (col < WIDTH), other=0.0)
    else:
        if WIDTH == PADDED:
            return tl.load(at)
        else:
            return tl.load(at, mask=col < WIDTH, other=0.0)


@triton.jit
def _attend(
    top, weight_sum, total, q, q_rope, kv_at, key_at, start, position, num_keys, scale, kv_stride, key_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, V: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One block of keys; MASKED where some are later than a query, or past the end."""
    n = start + tl.arange(0, BLOCK_N)
    real = n < num_keys
    row = n.to(tl.int64)
    d, e, f = tl.arange(0, D), tl.arange(0, E), tl.arange(0, F)
    key = _load_part(kv_at + (row * kv_stride)[None, :] + d[:, None], real[None, :], d[:, None], NOPE, D, MASKED)
    shared = _load_part(key_at + (row * key_stride)[None, :] + e[:, None], real[None, :], e[:, None], ROPE, E, MASKED)
    score = tl.dot(q, key, out_dtype=tl.float32)
    score = tl.dot(q_rope, shared, score, out_dtype=tl.float32) * scale
    if MASKED:
        score = tl.where(n[None, :] <= position[:, None], score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - new_top[:, None])
    fade = tl.exp2(top - new_top)
    value = _load_part(kv_at + NOPE + (row * kv_stride)[:, None] + f[None, :], real[:, None], f[None, :], V, F, MASKED)
    total = tl.dot(weight.to(value.dtype), value, total * fade[:, None], out_dtype=tl.float32)
    return new_top, weight_sum * fade + tl.sum(weight, 1), total


@triton.jit
def _prefill_kernel(
    q, kv, key, out, scale, num_queries, num_keys, q_stride, kv_stride, key_stride, out_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, V: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """D, E and F are NOPE, ROPE and V, rounded up to powers of two. `scale` includes log2(e)."""
    head = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)  # the longest rows first
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = m[:, None] < num_queries
    d, e, f = tl.arange(0, D), tl.arange(0, E), tl.arange(0, F)
    q_at = q + m[:, None].to(tl.int64) * q_stride + head * (NOPE + ROPE)
    q_nope = _load_part(q_at + d[None, :], inside, d[None, :], NOPE, D, True)
    q_rope = _load_part(q_at + NOPE + e[None, :], inside, e[None, :], ROPE, E, True)
    position = num_keys - num_queries + m
    kv_at = kv + head * (NOPE + V)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, F], tl.float32)
    first = num_keys - num_queries + block * BLOCK_M  # the position of the first query
    before = (first + 1) // BLOCK_N * BLOCK_N  # keys in whole blocks that no query is before
    end = tl.minimum(first + BLOCK_M, num_keys)
    for start in range(0, before, BLOCK_N):
        top, weight_sum, total = _attend(
            top, weight_sum, total, q_nope, q_rope, kv_at, key, start, position, num_keys, scale, kv_stride, key_stride,
            NOPE, ROPE, V, D, E, F, BLOCK_N, False,
        )  # fmt: skip
    for start in range(before, end, BLOCK_N):
        top, weight_sum, total = _attend(
            top, weight_sum, total, q_nope, q_rope, kv_at, key, start, position, num_keys, scale, kv_stride, key_stride,
            NOPE, ROPE, V, D, E, F, BLOCK_N, True,
        )  # fmt: skip
    out_at = out + m[:, None].to(tl.int64) * out_stride + head * V + f[None, :]
    tl.store(out_at, (total / weight_sum[:, None]).to(out.dtype.element_ty), mask=inside & (f[None, :] < V))


def prefill_attention(chip: Chip, q: Tensor, kv: Tensor, key: Tensor, shape: MlaShape, out: Tensor) -> Launch:
    """Launches out [T, n * v] of q [T, n * (nope + rope)], the last T of L tokens; all bfloat16.

    kv [L, n * (nope + v)] as kv_b makes it of the latents, key [L, rope] rotated; of any n of the model's heads,
    so that the expanded keys of a long context need not all be there at once. Rows may be longer than packed.
    """
    num_queries, num_keys = len(q), len(kv)
    heads = q.shape[1] // (shape.nope_dim + shape.rope_dim)
    check(q, "queries", (num_queries, heads * (shape.nope_dim + shape.rope_dim)), torch.bfloat16)
    check(kv, "keys and values", (num_keys, heads * (shape.nope_dim + shape.v_dim)), torch.bfloat16)
    check(key, "rotated keys", (num_keys, shape.rope_dim), torch.bfloat16)
    check(out, "output", (num_queries, heads * shape.v_dim), torch.bfloat16)
    assert 0 < num_queries <= num_keys, f"{num_queries} queries of {num_keys} tokens"
    for x in (q, kv, key, out):
        assert x.stride(1) == 1, "queries, keys, values and outputs lie row by row"
    check_together(q, kv, key, out)
    tile = PREFILL_ATTENTION[chip.capability]
    arguments: dict[str, Argument] = {
        "q": q,
        "kv": kv,
        "key": key,
        "out": out,
        "scale": shape.softmax_scale * LOG2_E,
        "num_queries": num_queries,
        "num_keys": num_keys,
        "q_stride": q.stride(0),
        "kv_stride": kv.stride(0),
        "key_stride": key.stride(0),
        "out_stride": out.stride(0),
    }
    constants = {
        "NOPE": shape.nope_dim,
        "ROPE": shape.rope_dim,
        "V": shape.v_dim,
        "D": max(power_of_two(shape.nope_dim), 16),
        "E": max(power_of_two(shape.rope_dim), 16),
        "F": max(power_of_two(shape.v_dim), 16),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
    }
    grid = (heads, ceil_div(num_queries, tile.block_m))
    return Launch(_prefill_kernel, grid, arguments, constants, tile.num_warps, tile.num_stages)

"""Absorbed multi-head latent attention for single queries over the paged latent cache, split over the tokens.

Queries are in the latent space (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), so a cached row is key and value.
Each split leaves a normalised output and the logarithm (base 2) of its sum of weights; a second kernel merges them.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.launch import Argument, Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import check, check_packed, check_together
from localmoe.kernels.gpu.tiles import DECODE_ATTENTION
from localmoe.kernels.ops import PAGE_TOKENS

LOG2_E = math.log2(math.e)
MAX_SPLITS = 64


@triton.jit
def _decode_kernel(
    q, cache, pages, lengths, partial, partial_log, scale, num_heads, table_width, q_stride, q_head_stride, page_stride,
    SPLITS: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, LATENT: tl.constexpr, KEY: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """LATENT and KEY are RANK and ROPE, rounded up to powers of two. `scale` includes log2(e)."""
    query = tl.program_id(1)
    split = tl.program_id(2)
    head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    r = tl.arange(0, LATENT)
    d = tl.arange(0, KEY)
    inside = head < num_heads
    length = tl.load(lengths + query)
    share = tl.cdiv(tl.cdiv(length, PAGE), SPLITS) * PAGE
    begin = split * share
    end = tl.minimum(begin + share, length)
    q_at = q + query.to(tl.int64) * q_stride + head[:, None] * q_head_stride
    q_latent = tl.load(q_at + r[None, :], mask=inside[:, None] & (r[None, :] < RANK), other=0.0)
    q_key = tl.load(q_at + RANK + d[None, :], mask=inside[:, None] & (d[None, :] < ROPE), other=0.0)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_H], tl.float32)
    total = tl.zeros([BLOCK_H, LATENT], tl.float32)
    for start in range(begin, end, BLOCK_N):
        page = tl.load(pages + query * table_width + start // PAGE)
        token = start + tl.arange(0, BLOCK_N)
        real = token < end
        row_at = cache + page.to(tl.int64) * page_stride + (token % PAGE) * (RANK + ROPE)
        latent = tl.load(row_at[:, None] + r[None, :], mask=real[:, None] & (r[None, :] < RANK), other=0.0)
        key = tl.load(row_at[None, :] + RANK + d[:, None], mask=real[None, :] & (d[:, None] < ROPE), other=0.0)
        score = tl.dot(q_latent, tl.trans(latent), out_dtype=tl.float32)
        score = tl.dot(q_key, key, score, out_dtype=tl.float32) * scale
        score = tl.where(real[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        fade = tl.exp2(top - new_top)
        weight_sum = weight_sum * fade + tl.sum(weight, 1)
        total = tl.dot(weight.to(latent.dtype), latent, total * fade[:, None], out_dtype=tl.float32)
        top = new_top
    at = (query * SPLITS + split).to(tl.int64) * num_heads + head
    if begin < end:
        out_at = partial + at[:, None] * RANK + r[None, :]
        tl.store(out_at, total / weight_sum[:, None], mask=inside[:, None] & (r[None, :] < RANK))
        tl.store(partial_log + at, top + tl.log2(weight_sum), mask=inside)
    else:
        tl.store(partial_log + at, tl.full([BLOCK_H], float("-inf"), tl.float32), mask=inside)


@triton.jit
def _merge_kernel(partial, partial_log, out, num_heads, RANK: tl.constexpr, LATENT: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    query = tl.program_id(1)
    r = tl.arange(0, LATENT)
    first = (query * SPLITS).to(tl.int64) * num_heads + head
    top = tl.load(partial_log + first)  # the first split always has tokens
    total = tl.load(partial + first * RANK + r, mask=r < RANK, other=0.0)
    weight_sum = 1.0
    for split in range(1, SPLITS):
        at = first + split * num_heads
        other = tl.load(partial_log + at)
        new_top = tl.maximum(top, other)
        fade, weight = tl.exp2(top - new_top), tl.exp2(other - new_top)
        width = tl.where(weight > 0, RANK, 0)  # nothing was written for a split without tokens
        total = total * fade + weight * tl.load(partial + at * RANK + r, mask=r < width, other=0.0)
        weight_sum = weight_sum * fade + weight
        top = new_top
    out_at = out + (query.to(tl.int64) * num_heads + head) * RANK + r
    tl.store(out_at, (total / weight_sum).to(out.dtype.element_ty), mask=r < RANK)


def num_splits(chip: Chip, num_queries: int, num_heads: int, max_length: int) -> int:
    """A power of two that gives each multiprocessor about one block, each split at least two pages."""
    tile = DECODE_ATTENTION[chip.capability]
    blocks = num_queries * ceil_div(num_heads, tile.block_m)
    wanted = min(ceil_div(chip.num_sms, blocks), ceil_div(max_length, 2 * PAGE_TOKENS), MAX_SPLITS)
    return power_of_two(wanted + 1) // 2


def decode_attention(
    chip: Chip, q: Tensor, cache: Tensor, pages: Tensor, lengths: Tensor, softmax_scale: float,
    partial: Tensor, partial_log: Tensor, out: Tensor,
) -> tuple[Launch, Launch]:  # fmt: skip
    """The latent outputs out [B, N, R] bfloat16 of absorbed queries q [B, N, R + rope] bfloat16; two launches in order.

    cache [pages, 64, R + rope] bfloat16; query b attends to its first lengths[b] (int32, at least 1) tokens, token p in
    row p % 64 of page pages[b, p // 64] (int32). Workspace: partial [B, splits, N, R] and partial_log
    [B, splits, N] float32, `splits` as by `num_splits`.
    """
    num_queries, num_heads, width = q.shape
    rank = out.shape[2]
    splits = partial.shape[1]
    check(q, "queries", (num_queries, num_heads, width), torch.bfloat16)
    check(out, "output", (num_queries, num_heads, rank), torch.bfloat16)
    check(cache, "latent cache", (len(cache), PAGE_TOKENS, width), torch.bfloat16)
    check(pages, "page table", (num_queries, pages.shape[1]), torch.int32)
    check(lengths, "lengths", (num_queries,), torch.int32)
    check(partial, "workspace", (num_queries, splits, num_heads, rank), torch.float32)
    check(partial_log, "workspace", (num_queries, splits, num_heads), torch.float32)
    assert PAGE_TOKENS % DECODE_ATTENTION[chip.capability].block_n == 0, "a step takes tokens of one page"
    assert 0 < rank < width, f"rows of {width} with a latent of {rank}"
    assert 1 <= splits <= MAX_SPLITS, f"{splits} splits"
    assert q.stride(2) == 1, "queries lie row by row"
    for x in (pages, lengths, partial, partial_log, out):
        assert x.is_contiguous(), "page table, lengths, workspace and output are packed"
    check_packed(cache, "latent cache")
    check_together(q, cache, pages, lengths, partial, partial_log, out)
    tile = DECODE_ATTENTION[chip.capability]
    latent = max(power_of_two(rank), 16)
    arguments: dict[str, Argument] = {
        "q": q,
        "cache": cache,
        "pages": pages,
        "lengths": lengths,
        "partial": partial,
        "partial_log": partial_log,
        "scale": softmax_scale * LOG2_E,
        "num_heads": num_heads,
        "table_width": pages.shape[1],
        "q_stride": q.stride(0),
        "q_head_stride": q.stride(1),
        "page_stride": cache.stride(0),
    }
    constants = {
        "SPLITS": splits,
        "RANK": rank,
        "ROPE": width - rank,
        "LATENT": latent,
        "KEY": max(power_of_two(width - rank), 16),
        "PAGE": PAGE_TOKENS,
        "BLOCK_H": tile.block_m,
        "BLOCK_N": tile.block_n,
    }
    grid = (ceil_div(num_heads, tile.block_m), num_queries, splits)
    merged: dict[str, Argument] = {"partial": partial, "partial_log": partial_log, "out": out, "num_heads": num_heads}
    return (
        Launch(_decode_kernel, grid, arguments, constants, tile.num_warps, tile.num_stages),
        Launch(
            _merge_kernel, (num_heads, num_queries), merged, {"RANK": rank, "LATENT": latent, "SPLITS": splits}, 4, 2
        ),
    )

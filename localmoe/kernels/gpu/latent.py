"""Rows of the latent cache: normed, rotated and written in one pass, and read back in order for prefill."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.launch import Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import check, check_packed, check_together
from localmoe.kernels.ops import PAGE_TOKENS

NO_ROW = -1  # in `rows`: this token is not written


@triton.jit
def _append_kernel(
    kv, weight, table, rows, cache, eps, kv_stride, page_stride,
    RANK: tl.constexpr, HALF: tl.constexpr, LATENT: tl.constexpr, PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """LATENT and PAIRS are RANK and HALF, rounded up to powers of two."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + token)
    if row < 0:
        return
    r = tl.arange(0, LATENT)
    latent = tl.load(kv + token * kv_stride + r, mask=r < RANK, other=0.0).to(tl.float32)
    latent = latent * tl.rsqrt(tl.sum(latent * latent, 0) / RANK + eps)
    latent = latent * tl.load(weight + r, mask=r < RANK, other=0.0)
    pair = tl.arange(0, PAIRS)
    cos = tl.load(table + token * 2 * HALF + pair, mask=pair < HALF, other=0.0)
    sin = tl.load(table + token * 2 * HALF + HALF + pair, mask=pair < HALF, other=0.0)
    step: tl.constexpr = 2 if INTERLEAVED else 1
    apart: tl.constexpr = 1 if INTERLEAVED else HALF
    key_at = kv + token * kv_stride + RANK + pair * step
    first = tl.load(key_at, mask=pair < HALF, other=0.0).to(tl.float32)
    second = tl.load(key_at + apart, mask=pair < HALF, other=0.0).to(tl.float32)
    out = cache + (row // PAGE).to(tl.int64) * page_stride + row % PAGE * (RANK + 2 * HALF)
    tl.store(out + r, latent.to(cache.dtype.element_ty), mask=r < RANK)
    out += RANK + pair * step
    tl.store(out, (first * cos - second * sin).to(cache.dtype.element_ty), mask=pair < HALF)
    tl.store(out + apart, (second * cos + first * sin).to(cache.dtype.element_ty), mask=pair < HALF)


def append_latent(
    kv: Tensor, weight: Tensor, eps: float, table: Tensor, interleaved: bool, rows: Tensor, cache: Tensor
) -> Launch:
    """Writes each token's RMS-normed latent and rotated key of kv [T, R + rope] (bfloat16 or float32) to the cache.

    weight [R] float32 of the norm; table [T, rope] as by norm.rotation; rows [T] int32, 64 * page + row in the page,
    or NO_ROW; cache [pages, 64, R + rope] bfloat16.
    """
    num_tokens, width = kv.shape
    dim = table.shape[1]
    check(kv, "latents and keys", (num_tokens, width), torch.bfloat16, torch.float32)
    check(weight, "norm weight", (width - dim,), torch.float32)
    check(table, "rotation", (num_tokens, dim), torch.float32)
    check(rows, "rows", (num_tokens,), torch.int32)
    check(cache, "latent cache", (len(cache), PAGE_TOKENS, width), torch.bfloat16)
    assert num_tokens > 0 and dim % 2 == 0, f"{num_tokens} tokens, {dim} rotated elements"
    check_packed(kv, "latents and keys")
    check_packed(cache, "latent cache")
    assert table.is_contiguous() and rows.is_contiguous(), "rotation and rows are packed"
    check_together(kv, weight, table, rows, cache)
    constants = {
        "RANK": width - dim,
        "HALF": dim // 2,
        "LATENT": power_of_two(width - dim),
        "PAIRS": power_of_two(dim // 2),
        "INTERLEAVED": interleaved,
        "PAGE": PAGE_TOKENS,
    }
    return Launch(
        _append_kernel,
        (num_tokens,),
        {
            "kv": kv,
            "weight": weight,
            "table": table,
            "rows": rows,
            "cache": cache,
            "eps": float(eps),
            "kv_stride": kv.stride(0),
            "page_stride": cache.stride(0),
        },
        constants,
        4,
        1,
    )


def gather_latents(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """A session's first `length` rows in order, [length, R + rope], copied from cache [pages, 64, R + rope]."""
    count = ceil_div(length, PAGE_TOKENS)
    assert 0 < count <= len(pages), f"{length} tokens in {len(pages)} pages"
    return cache.index_select(0, pages[:count]).flatten(0, 1)[:length]

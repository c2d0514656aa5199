"""Products of each head with its own part of kv_b, which take queries into the latent space and outputs out of it.

kv_b has, for each head, `nope` rows that make its keys and `v` rows that make its values (DeepSeek-V2, arXiv
2405.04434, section 2.1.2). FP8 weights are decoded to BF16 on every chip: these products are small and read much.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.arithmetic import decode_e4m3
from localmoe.kernels.gpu.launch import Launch, ceil_div
from localmoe.kernels.gpu.matrix import Weights, check, check_together
from localmoe.kernels.ops import MlaShape

BLOCK_M, BLOCK_N, BLOCK_K = 16, 64, 64


@triton.jit
def _heads_kernel(
    x, weight, w_scale, out, num_tokens, num_cols, num_rows, rank, first_row, head_rows,
    x_stride, x_head_stride, out_stride, out_head_stride,
    ALONG_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One head: out [T, num_rows] of x [T, num_cols], summed over the weight's rows if ALONG_ROWS, else columns."""
    head = tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_at = x + m[:, None].to(tl.int64) * x_stride + head * x_head_stride
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_cols, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        value = tl.load(x_at + k[None, :], mask=(m[:, None] < num_tokens) & (k[None, :] < num_cols), other=0.0)
        if ALONG_ROWS:
            row, col = head * head_rows + first_row + k[:, None], n[None, :]
        else:
            row, col = head * head_rows + first_row + n[None, :], k[:, None]
        inside = (k[:, None] < num_cols) & (n[None, :] < num_rows)
        part = tl.load(weight + row.to(tl.int64) * rank + col, mask=inside, other=0.0)
        if w_scale is not None:
            scale = tl.load(w_scale + row // 128 * tl.cdiv(rank, 128) + col // 128, mask=inside, other=0.0)
            part = (decode_e4m3(part).to(tl.float32) * (scale * 256.0)).to(tl.bfloat16)
        total = tl.dot(value, part, total, out_dtype=tl.float32)
    out_at = out + m[:, None].to(tl.int64) * out_stride + head * out_head_stride + n[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(m[:, None] < num_tokens) & (n[None, :] < num_rows))


def absorb_queries(q: Tensor, kv_b: Weights, shape: MlaShape, out: Tensor) -> Launch:
    """Each head's q [T, N, nope] times its key rows of kv_b: out [T, N, R], all bfloat16, rows packed, heads apart."""
    check(q, "queries", (len(q), shape.num_heads, shape.nope_dim), torch.bfloat16)
    check(out, "latent queries", (len(q), shape.num_heads, shape.rank), torch.bfloat16)
    return _launch(q, kv_b, shape, out, "rows")


def expand_outputs(latent: Tensor, kv_b: Weights, shape: MlaShape, out: Tensor) -> Launch:
    """Each head's value rows of kv_b times its latent [T, N, R]: out [T, N, v], all bfloat16."""
    check(latent, "latent outputs", (len(latent), shape.num_heads, shape.rank), torch.bfloat16)
    check(out, "outputs", (len(latent), shape.num_heads, shape.v_dim), torch.bfloat16)
    return _launch(latent, kv_b, shape, out, "columns")


def _launch(x: Tensor, kv_b: Weights, shape: MlaShape, out: Tensor, along: Literal["rows", "columns"]) -> Launch:
    head_rows = shape.nope_dim + shape.v_dim
    assert kv_b.count == 1, f"{kv_b.count} matrices for kv_b"
    wanted = (shape.num_heads * head_rows, shape.rank)
    assert (kv_b.rows, kv_b.cols) == wanted, f"kv_b is {kv_b.rows} x {kv_b.cols}, expected {wanted[0]} x {wanted[1]}"
    assert len(x) > 0 and x.stride(2) == 1 and out.stride(2) == 1, "rows lie packed"
    check_together(x, kv_b.weight, out)
    num_rows = out.shape[2]
    return Launch(
        _heads_kernel,
        (ceil_div(num_rows, BLOCK_N), shape.num_heads, ceil_div(len(x), BLOCK_M)),
        {
            "x": x,
            "weight": kv_b.operand("decoded" if kv_b.scale is not None else "bf16"),
            "w_scale": kv_b.scale,
            "out": out,
            "num_tokens": len(x),
            "num_cols": x.shape[2],
            "num_rows": num_rows,
            "rank": shape.rank,
            "first_row": 0 if along == "rows" else shape.nope_dim,
            "head_rows": head_rows,
            "x_stride": x.stride(0),
            "x_head_stride": x.stride(1),
            "out_stride": out.stride(0),
            "out_head_stride": out.stride(1),
        },
        {"ALONG_ROWS": along == "rows", "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K},
        4,
        2,
    )

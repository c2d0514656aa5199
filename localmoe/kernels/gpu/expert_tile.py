"""One tile of a product over the experts of a group: which it is, and what is computed of it."""

import triton
import triton.language as tl

from localmoe.kernels.gpu.arithmetic import accumulate, load_depth


@triton.jit
def find_tile(tile, offsets, num_experts, num_n, BLOCK_M: tl.constexpr, TOGETHER: tl.constexpr, EXPERTS: tl.constexpr):
    """Expert, first row, end of the expert's rows and column tile of the tile with this number."""
    e = tl.arange(0, EXPERTS)
    begin = tl.load(offsets + e, mask=e < num_experts, other=0)
    end = tl.load(offsets + e + 1, mask=e < num_experts, other=0)
    num_tiles = tl.cdiv(end - begin, BLOCK_M) * num_n
    expert = tl.sum((tl.cumsum(num_tiles, 0) <= tile).to(tl.int32), 0)  # num_experts or more: no such tile
    local = tile - tl.sum(tl.where(e < expert, num_tiles, 0), 0)
    first = tl.sum(tl.where(e == expert, begin, 0), 0)
    stop = tl.sum(tl.where(e == expert, end, 0), 0)
    band = local // (TOGETHER * num_n) * TOGETHER
    height = tl.maximum(tl.minimum(tl.cdiv(stop - first, BLOCK_M) - band, TOGETHER), 1)
    within = local % (TOGETHER * num_n)
    return expert, first + (band + within % height) * BLOCK_M, stop, within // height


@triton.jit
def multiply_tile(
    expert, row, stop, n_tile, x, x_scale, tokens, gate, gate_scale, up, up_scale, out,
    num_cols, num_rows, x_stride, w_stride, w_scale_stride, out_stride,
    FORM: tl.constexpr, GATED: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of out[s] = silu(gate x) * (up x), or of gate x; s a sorted row, x the row of its token."""
    m = row + tl.arange(0, BLOCK_M)
    token = m
    if tokens is not None:
        token = tl.load(tokens + m, mask=m < stop, other=0)
    token = tl.where(m < stop, token, 0).to(tl.int64)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    num_blocks = tl.cdiv(num_cols, 128)
    x_at = x + token[:, None] * x_stride + k[None, :]
    w_at = expert.to(tl.int64) * w_stride + tl.minimum(n, num_rows - 1)[None, :].to(tl.int64) * num_cols + k[:, None]
    scales_at = expert.to(tl.int64) * w_scale_stride + (n_tile * BLOCK_N // 128) * num_blocks
    x_scale_at, gate_scale_at, up_scale_at = x_scale, gate_scale, up_scale
    if FORM != "bf16":
        gate_scale_at = gate_scale + scales_at
        if GATED:
            up_scale_at = up_scale + scales_at
    if FORM == "fp8":
        x_scale_at = x_scale + token * num_blocks
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total_up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, num_cols, BLOCK_K, num_stages=STAGES):
        left, block = num_cols - start, start // 128
        rows = load_depth(x_at + start, k[None, :], left, EVEN_K)
        weight = load_depth(gate + w_at + start, k[:, None], left, EVEN_K)
        total = accumulate(total, rows, weight, x_scale_at, gate_scale_at, block, FORM)
        if GATED:
            weight = load_depth(up + w_at + start, k[:, None], left, EVEN_K)
            total_up = accumulate(total_up, rows, weight, x_scale_at, up_scale_at, block, FORM)
    if GATED:
        total = total * tl.sigmoid(total) * total_up
    out_at = out + m[:, None].to(tl.int64) * out_stride + n[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(m[:, None] < stop) & (n[None, :] < num_rows))

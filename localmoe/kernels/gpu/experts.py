"""Matrix products over the experts of a group: tokens sorted by expert, each expert's weights read in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.arithmetic import accumulate, load_depth
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.launch import Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import BLOCK, Activations, Weights, check, check_packed, check_together
from localmoe.kernels.gpu.tiles import Tile, matmul_tile

TILES_TOGETHER = 8  # tiles of rows that follow each other over the same weights, for the L2 cache


@triton.jit
def _find_tile(tile, offsets, num_experts, num_n, BLOCK_M: tl.constexpr, TOGETHER: tl.constexpr, EXPERTS: tl.constexpr):
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
def _experts_kernel(
    x, x_scale, tokens, offsets, gate, gate_scale, up, up_scale, out,
    num_experts, num_cols, num_rows, x_stride, w_stride, w_scale_stride, out_stride,
    FORM: tl.constexpr, GATED: tl.constexpr, EVEN_K: tl.constexpr, TOGETHER: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of out[s] = silu(gate x) * (up x), or of gate x; s a sorted row, x the row of its token."""
    expert, row, stop, n_tile = _find_tile(
        tl.program_id(0), offsets, num_experts, tl.cdiv(num_rows, BLOCK_N), BLOCK_M, TOGETHER, EXPERTS
    )
    if expert >= num_experts:
        return
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
    for start in range(0, num_cols, BLOCK_K):
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


def gate_up(
    chip: Chip, x: Activations, tokens: Tensor, offsets: Tensor, gate: Weights, up: Weights, out: Tensor, rows: int
) -> Launch:
    """out[s] = silu(gate x) * (up x) for the sorted rows s of this group's experts, x the row `tokens[s]`.

    tokens [S] int32; offsets [G + 1] int32, positions in `tokens`: expert g has rows offsets[g] to offsets[g + 1].
    out [S, I] bfloat16, other rows untouched. `rows`: of an expert, as expected; it only chooses the tile.
    """
    assert up.weight.shape == gate.weight.shape and up.weight.stride() == gate.weight.stride(), "gate and up differ"
    assert up.weight.dtype == gate.weight.dtype, "gate and up differ in dtype"
    if gate.scale is not None and up.scale is not None:
        assert up.scale.stride() == gate.scale.stride(), "the scales of gate and up lie differently"
    check(tokens, "tokens", (len(tokens),), torch.int32)
    form = gate.form(chip, x.is_quantised)
    return _launch(x, tokens, offsets, gate, up, out, matmul_tile("gate_up", form, chip, rows), chip)


def down(chip: Chip, x: Activations, offsets: Tensor, weights: Weights, out: Tensor, rows: int) -> Launch:
    """out[s] = weights x[s] for the sorted rows s of this group's experts: out [S, H] bfloat16 or float32."""
    assert len(x.values) == len(out), f"{len(x.values)} rows in, {len(out)} out"
    form = weights.form(chip, x.is_quantised)
    return _launch(x, None, offsets, weights, None, out, matmul_tile("matmul", form, chip, rows), chip)


def _launch(
    x: Activations, tokens: Tensor | None, offsets: Tensor, w: Weights, up: Weights | None, out: Tensor,
    tile: Tile, chip: Chip,
) -> Launch:  # fmt: skip
    num_rows = len(x.values) if tokens is None else len(tokens)
    assert x.values.shape[1] == w.cols, f"activations have {x.values.shape[1]} columns, weights {w.cols}"
    check(offsets, "offsets", (w.count + 1,), torch.int32)
    check(out, "output", (num_rows, w.rows), torch.bfloat16, torch.float32)
    check_packed(out, "output")
    check_together(x.values, tokens, offsets, w.weight, None if up is None else up.weight, out)
    form = w.form(chip, x.is_quantised)
    num_tiles = num_rows // tile.block_m + min(w.count, num_rows)  # at most: each expert's last tile may be part full
    return Launch(
        _experts_kernel,
        (num_tiles * ceil_div(w.rows, tile.block_n),),
        {
            "x": x.values,
            "x_scale": x.scale,
            "tokens": tokens,
            "offsets": offsets,
            "gate": w.operand(form),
            "gate_scale": w.scale,
            "up": None if up is None else up.operand(form),
            "up_scale": None if up is None else up.scale,
            "out": out,
            "num_experts": w.count,
            "num_cols": w.cols,
            "num_rows": w.rows,
            "x_stride": x.values.stride(0),
            "w_stride": w.weight.stride(0),
            "w_scale_stride": 0 if w.scale is None else w.scale.stride(0),
            "out_stride": out.stride(0),
        },
        {
            "FORM": form,
            "GATED": up is not None,
            "EVEN_K": w.cols % BLOCK == 0,
            "TOGETHER": TILES_TOGETHER,
            "EXPERTS": power_of_two(w.count),
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
        },
        tile.num_warps,
        tile.num_stages,
    )

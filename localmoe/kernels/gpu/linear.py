"""Dense products: for few rows split over the columns as well, so that all of the chip reads weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.arithmetic import accumulate, load_depth
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.launch import Argument, Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import BLOCK, Activations, Weights, check, check_packed, check_together
from localmoe.kernels.gpu.tiles import MATMULS, matmul_tile

TILES_TOGETHER = 8  # tiles of rows that follow each other over the same weights, for the L2 cache
MAX_SPLITS = 16
MIN_BLOCKS = 4  # of 128 columns that a split has at least
COLUMNS = 1024  # of one block's work when the splits are added


@triton.jit
def _linear_kernel(
    x, x_scale, weight, w_scale, out, num_tokens, num_cols, num_rows, x_stride, out_stride, split_stride,
    FORM: tl.constexpr, EVEN_K: tl.constexpr, SPLITS: tl.constexpr, TOGETHER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of out = x weight^T, over this split's columns."""
    split = tl.program_id(1)
    num_m = tl.cdiv(num_tokens, BLOCK_M)
    width = TOGETHER * tl.cdiv(num_rows, BLOCK_N)
    band = tl.program_id(0) // width * TOGETHER
    height = tl.minimum(num_m - band, TOGETHER)
    within = tl.program_id(0) % width
    m = (band + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_row = within // height * BLOCK_N
    n = first_row + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    num_blocks = tl.cdiv(num_cols, 128)
    share = tl.cdiv(num_blocks, SPLITS) * 128
    token = tl.minimum(m, num_tokens - 1).to(tl.int64)
    x_at = x + token[:, None] * x_stride + k[None, :]
    w_at = weight + tl.minimum(n, num_rows - 1)[None, :].to(tl.int64) * num_cols + k[:, None]
    x_scale_at, w_scale_at = x_scale, w_scale
    if FORM == "fp8":
        x_scale_at = x_scale + token * num_blocks
    if FORM != "bf16":
        w_scale_at = w_scale + first_row // 128 * num_blocks
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(split * share, tl.minimum((split + 1) * share, num_cols), BLOCK_K):
        left = num_cols - start
        rows = load_depth(x_at + start, k[None, :], left, EVEN_K)
        weights = load_depth(w_at + start, k[:, None], left, EVEN_K)
        total = accumulate(total, rows, weights, x_scale_at, w_scale_at, start // 128, FORM)
    out_at = out + split.to(tl.int64) * split_stride + m[:, None].to(tl.int64) * out_stride + n[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(m[:, None] < num_tokens) & (n[None, :] < num_rows))


@triton.jit
def _add_splits_kernel(partial, out, num_cols, split_stride, out_stride, SPLITS: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial + split * split_stride + token * num_cols + col, mask=col < num_cols, other=0.0)
    tl.store(out + token * out_stride + col, total.to(out.dtype.element_ty), mask=col < num_cols)


def num_splits(chip: Chip, num_tokens: int, w: Weights, quantised: bool) -> int:
    """A power of two that gives each multiprocessor about two blocks; 1 where the tiles alone do."""
    tile = matmul_tile("matmul", w.form(chip, quantised), chip, num_tokens)
    tiles = ceil_div(num_tokens, tile.block_m) * ceil_div(w.rows, tile.block_n)
    wanted = min(2 * chip.num_sms // tiles, w.cols // (MIN_BLOCKS * BLOCK), MAX_SPLITS)
    return power_of_two(wanted + 1) // 2 if wanted > 1 else 1


def workspace_floats(chip: Chip, max_tokens: int, max_rows: int) -> int:
    """Enough for the splits of any product with up to `max_tokens` rows of up to `max_rows` columns."""
    tile = max(t.block_m * t.block_n for rows in MATMULS.values() for _, t in rows.get(chip.capability, ()))
    return min(2 * chip.num_sms * tile, MAX_SPLITS * max_tokens * max_rows)  # tiles times splits are 2 * SMs at most


def linear(chip: Chip, x: Activations, w: Weights, out: Tensor, partial: Tensor | None = None) -> tuple[Launch, ...]:
    """Launches, in order, that make out [T, rows] bfloat16 or float32 of x [T, cols] and one matrix of weights.

    `partial` [splits, T, rows] float32 is the workspace where `num_splits` is above 1. Sums have a fixed order.
    """
    num_tokens = len(x.values)
    assert w.count == 1, f"{w.count} matrices for a dense product"
    assert x.values.shape[1] == w.cols, f"activations have {x.values.shape[1]} columns, weights {w.cols}"
    check(out, "output", (num_tokens, w.rows), torch.bfloat16, torch.float32)
    check_packed(out, "output")
    check_together(x.values, w.weight, out, partial)
    if partial is None:
        return (_product(chip, x, w, out, out.stride(0), 1, 0),)
    splits = len(partial)
    check(partial, "workspace", (splits, num_tokens, w.rows), torch.float32)
    assert partial.is_contiguous(), "the workspace is not packed"
    assert 1 <= splits <= MAX_SPLITS, f"{splits} splits"
    arguments: dict[str, Argument] = {
        "partial": partial,
        "out": out,
        "num_cols": w.rows,
        "split_stride": partial.stride(0),
        "out_stride": out.stride(0),
    }
    grid = (num_tokens, ceil_div(w.rows, COLUMNS))
    add = Launch(_add_splits_kernel, grid, arguments, {"SPLITS": splits, "COLUMNS": COLUMNS}, 4, 1)
    return _product(chip, x, w, partial, partial.stride(1), splits, partial.stride(0)), add


def _product(
    chip: Chip, x: Activations, w: Weights, out: Tensor, out_stride: int, splits: int, split_stride: int
) -> Launch:
    num_tokens = len(x.values)
    form = w.form(chip, x.is_quantised)
    tile = matmul_tile("matmul", form, chip, num_tokens)
    return Launch(
        _linear_kernel,
        (ceil_div(num_tokens, tile.block_m) * ceil_div(w.rows, tile.block_n), splits),
        {
            "x": x.values,
            "x_scale": x.scale,
            "weight": w.operand(form),
            "w_scale": w.scale,
            "out": out,
            "num_tokens": num_tokens,
            "num_cols": w.cols,
            "num_rows": w.rows,
            "x_stride": x.values.stride(0),
            "out_stride": out_stride,
            "split_stride": split_stride,
        },
        {
            "FORM": form,
            "EVEN_K": w.cols % BLOCK == 0,
            "SPLITS": splits,
            "TOGETHER": TILES_TOGETHER,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
        },
        tile.num_warps,
        tile.num_stages,
    )

"""Activations in FP8, one scale for each 128 columns of a row (DeepSeek-V3, arXiv 2412.19437, section 3.3.2)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.launch import Argument, Launch, ceil_div
from localmoe.kernels.gpu.matrix import BLOCK, FP8, check, check_packed, check_together

ROWS = 8  # of one block's work


@triton.jit
def _quantise_kernel(
    x, codes, scale, window, num_rows, num_cols, num_experts, x_stride, codes_stride,
    POWER_OF_TWO: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    if window is not None:  # noqa: SIM102 - decided when it is compiled
        if (first >= tl.load(window + num_experts)) | (first + ROWS <= tl.load(window)):
            return
    row = first + tl.arange(0, ROWS)
    col = block * 128 + tl.arange(0, 128)
    inside = (row[:, None] < num_rows) & (col[None, :] < num_cols)
    at = row[:, None].to(tl.int64)
    value = tl.load(x + at * x_stride + col[None, :], mask=inside, other=0.0).to(tl.float32)
    factor = tl.div_rn(tl.max(tl.abs(value), 1), 448.0)
    if POWER_OF_TWO:  # up to the next one, through the exponent's bits
        bits = (factor.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        factor = bits.to(tl.float32, bitcast=True)
    factor = tl.maximum(factor, 1e-30)  # of a row of zeros
    code = tl.div_rn(value, tl.broadcast_to(factor[:, None], value.shape)).to(tl.float8e4nv)
    tl.store(codes + at * codes_stride + col[None, :], code, mask=inside)
    tl.store(scale + row * tl.cdiv(num_cols, 128) + block, factor, mask=row < num_rows)


def quantise(
    x: Tensor, codes: Tensor, scale: Tensor, power_of_two: bool = False, window: Tensor | None = None
) -> Launch:
    """Quantises to codes [T, D] float8_e4m3fn and scale [T, ceil(D / 128)] float32 of x [T, D] bfloat16 or float32.

    A scale is the largest magnitude of its 128 columns over 448; `power_of_two` rounds it up to one, as models whose
    config says `scale_fmt: ue8m0` were trained with. The chip must have FP8 matrix units. `window` [G + 1] int32: only
    rows from its first to its last are needed, as in combine.Sorted.offsets of a group.
    """
    rows, cols = x.shape
    check(x, "activations", (rows, cols), torch.bfloat16, torch.float32)
    check(codes, "codes", (rows, cols), FP8)
    check(scale, "scales", (rows, ceil_div(cols, BLOCK)), torch.float32)
    assert rows > 0 and x.stride(1) == 1 and codes.stride(1) == 1, "activations lie row by row"
    check_packed(scale, "scales")
    if window is not None:
        check(window, "window", (len(window),), torch.int32)
    check_together(x, codes, scale, window)
    arguments: dict[str, Argument] = {
        "x": x,
        "codes": codes,
        "scale": scale,
        "window": window,
        "num_rows": rows,
        "num_cols": cols,
        "num_experts": 0 if window is None else len(window) - 1,
        "x_stride": x.stride(0),
        "codes_stride": codes.stride(0),
    }
    grid = (ceil_div(rows, ROWS), ceil_div(cols, BLOCK))
    return Launch(_quantise_kernel, grid, arguments, {"POWER_OF_TWO": power_of_two, "ROWS": ROWS}, 4, 1)

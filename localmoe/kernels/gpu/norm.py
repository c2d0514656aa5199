"""What is done to each token by itself: RMSNorm with the residual sum before it, rotary embedding, the gate's SiLU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.launch import Argument, Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import check, check_packed, check_together
from localmoe.kernels.ops import Rope

MAX_COLUMNS = 16384  # of a norm: one block holds a whole row
HEADS = 8  # of one block's work
COLUMNS = 1024  # likewise, where columns do not depend on each other


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, eps, num_cols, x_stride, residual_stride, out_stride, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, COLUMNS)
    inside = col < num_cols
    value = tl.load(x + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = residual + row * residual_stride + col
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, value.to(residual.dtype.element_ty), mask=inside)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / num_cols + eps)
    value = value * tl.load(weight + col, mask=inside, other=0.0)
    tl.store(out + row * out_stride + col, value.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, residual: Tensor | None = None) -> Launch:
    """Norms: out = x / sqrt(mean(x^2) + eps) * weight; with a residual, x is first added to it and the sum is normed.

    x, out, residual [T, D] bfloat16 or float32 (residual is written), weight [D] float32. `out` may be x.
    """
    rows, cols = x.shape
    assert rows > 0 and cols <= MAX_COLUMNS, f"{rows} rows of {cols} columns"
    check(weight, "norm weight", (cols,), torch.float32)
    for tensor, what in ((x, "input"), (out, "output"), (residual, "residual")):
        if tensor is not None:
            check(tensor, what, (rows, cols), torch.bfloat16, torch.float32)
            check_packed(tensor, what)
    check_together(x, weight, out, residual)
    columns = power_of_two(cols)
    arguments: dict[str, Argument] = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "out": out,
        "eps": float(eps),
        "num_cols": cols,
        "x_stride": x.stride(0),
        "residual_stride": 0 if residual is None else residual.stride(0),
        "out_stride": out.stride(0),
    }
    return Launch(_rms_norm_kernel, (rows,), arguments, {"COLUMNS": columns}, min(max(columns // 512, 1), 16), 1)


@triton.jit
def _rope_kernel(
    x, table, num_heads, x_stride,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    cos = tl.load(table + token * 2 * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    sin = tl.load(table + token * 2 * HALF + HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    inside = (head[:, None] < num_heads) & (pair[None, :] < HALF)
    step: tl.constexpr = 2 if INTERLEAVED else 1
    apart: tl.constexpr = 1 if INTERLEAVED else HALF
    at = x + token * x_stride + head[:, None] * HEAD_DIM + (HEAD_DIM - 2 * HALF) + pair[None, :] * step
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + apart, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (first * cos - second * sin).to(x.dtype.element_ty), mask=inside)
    tl.store(at + apart, (second * cos + first * sin).to(x.dtype.element_ty), mask=inside)


def rotation(positions: Tensor, rope: Rope) -> Tensor:
    """[T, dim] float32 of positions [T]: cosines, then sines, times the rope's scale; one table serves all layers."""
    inv_freq = torch.from_numpy(rope.inv_freq.copy()).to(positions.device)
    angle = positions.float()[:, None] * inv_freq
    return torch.cat([angle.cos(), angle.sin()], dim=1) * rope.scale


def rotate(x: Tensor, table: Tensor, head_dim: int, interleaved: bool) -> Launch:
    """Rotates, in place, the last elements of each head of x [T, heads * head_dim] by `table` [T, dim] (`rotation`)."""
    rows, cols = x.shape
    dim = table.shape[1]
    assert rows > 0 and cols % head_dim == 0 and dim % 2 == 0, f"{cols} columns in heads of {head_dim}, {dim} rotated"
    assert dim <= head_dim, f"{dim} rotated elements of heads of {head_dim}"
    check(x, "input", (rows, cols), torch.bfloat16, torch.float32)
    check(table, "rotation", (rows, dim), torch.float32)
    check_packed(x, "input")
    check_together(x, table)
    assert table.is_contiguous(), "the rotation is not packed"
    heads = min(HEADS, power_of_two(cols // head_dim))
    constants = {
        "HEAD_DIM": head_dim,
        "HALF": dim // 2,
        "PAIRS": power_of_two(dim // 2),
        "INTERLEAVED": interleaved,
        "HEADS": heads,
    }
    arguments: dict[str, Argument] = {"x": x, "table": table, "num_heads": cols // head_dim, "x_stride": x.stride(0)}
    return Launch(_rope_kernel, (rows, ceil_div(cols // head_dim, heads)), arguments, constants, 2, 1)


@triton.jit
def _silu_mul_kernel(gate, up, num_cols, gate_stride, up_stride, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = col < num_cols
    at = gate + row * gate_stride + col
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    value = value * tl.sigmoid(value) * tl.load(up + row * up_stride + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, value.to(gate.dtype.element_ty), mask=inside)


def silu_mul(gate: Tensor, up: Tensor) -> Launch:
    """silu(gate) * up, in place of gate; both [T, D] bfloat16 or float32."""
    rows, cols = gate.shape
    for tensor, what in ((gate, "gate"), (up, "up")):
        check(tensor, what, (rows, cols), torch.bfloat16, torch.float32)
        check_packed(tensor, what)
    check_together(gate, up)
    arguments: dict[str, Argument] = {
        "gate": gate,
        "up": up,
        "num_cols": cols,
        "gate_stride": gate.stride(0),
        "up_stride": up.stride(0),
    }
    return Launch(_silu_mul_kernel, (rows, ceil_div(cols, COLUMNS)), arguments, {"COLUMNS": COLUMNS}, 4, 1)

"""From tokens to the sorted rows of their experts, and back: each token gathers what its experts made of it.

A token adds its experts' outputs in the order of its choices, so that a sum never depends on what ran first.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.launch import Argument, Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import check, check_packed, check_together

ELSEWHERE = -1  # in Sorted.rows: the expert is not among these
COLUMNS = 1024  # of one block's work


@dataclass(frozen=True)
class Sorted:
    """Every choice of an expert as a row, by expert, then by token."""

    tokens: Tensor  # [T * K] int32: the token of each row; those of experts elsewhere come last
    offsets: Tensor  # [E + 1] int32: expert e has the rows offsets[e] to offsets[e + 1]
    rows: Tensor  # [T, K] int32: the row of each choice, or ELSEWHERE


def sort_by_expert(ids: Tensor, first: int, count: int) -> Sorted:
    """Sorts the choices ids [T, K] int32 of experts first to first + count; nothing waits for the device."""
    check(ids, "chosen experts", (len(ids), ids.shape[1]), torch.int32)
    num_tokens, top_k = ids.shape
    local = ids.flatten().long() - first
    here = (local >= 0) & (local < count)
    keys, order = torch.where(here, local, count).sort(stable=True)
    offsets = torch.searchsorted(keys, torch.arange(count + 1, device=ids.device), out_int32=True)
    rows = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=ids.device))
    rows = torch.where(here, rows, ELSEWHERE).int().view(num_tokens, top_k)
    return Sorted((order // top_k).int(), offsets, rows)


@triton.jit
def _combine_kernel(
    y, rows, weights, window, out, num_cols, num_experts, y_stride, out_stride,
    TOP_K: tl.constexpr, CHOICES: tl.constexpr, ADD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """CHOICES is TOP_K, rounded up to a power of two."""
    token = tl.program_id(0)
    col = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    out_at = out + token.to(tl.int64) * out_stride + col
    first = 0
    end = 0x7FFFFFFF
    if window is not None:
        first = tl.load(window)
        end = tl.load(window + num_experts)
    if ADD:
        k = tl.arange(0, CHOICES)
        all_rows = tl.load(rows + token * TOP_K + k, mask=k < TOP_K, other=-1)
        if tl.sum(((all_rows >= first) & (all_rows < end)).to(tl.int32), 0) == 0:
            return  # most tokens have no expert in a small group
    total = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        row = tl.load(rows + token * TOP_K + choice)
        row = tl.where((row >= first) & (row < end), row, -1)
        weight = tl.load(weights + token * TOP_K + choice)
        inside = col < tl.where(row >= 0, num_cols, 0)  # what lies in row 0 may be no number
        total += weight * tl.load(y + row.to(tl.int64) * y_stride + col, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        total += tl.load(out_at, mask=col < num_cols, other=0.0).to(tl.float32)
    tl.store(out_at, total.to(out.dtype.element_ty), mask=col < num_cols)


def combine(
    y: Tensor, rows: Tensor, weights: Tensor, out: Tensor, add: bool = False, window: Tensor | None = None
) -> Launch:
    """out[t] = sum over k of weights[t, k] * y[rows[t, k]], in FP32 and in the order of k; `add`: to what is there.

    y [S, H] and out [T, H] bfloat16 or float32; rows [T, K] int32, ELSEWHERE counts nothing; weights [T, K] float32.
    `window` [G + 1] int32: only rows from its first to its last count, as in Sorted.offsets of a group.
    """
    num_tokens, top_k = rows.shape
    check(rows, "rows", (num_tokens, top_k), torch.int32)
    check(weights, "routing weights", (num_tokens, top_k), torch.float32)
    check(y, "experts' outputs", (len(y), y.shape[1]), torch.bfloat16, torch.float32)
    check(out, "output", (num_tokens, y.shape[1]), torch.bfloat16, torch.float32)
    for x, what in ((rows, "rows"), (weights, "routing weights")):
        assert x.is_contiguous(), f"{what} are not packed"
    check_packed(y, "experts' outputs")
    check_packed(out, "output")
    if window is not None:
        check(window, "window", (len(window),), torch.int32)
    check_together(y, rows, weights, window, out)
    arguments: dict[str, Argument] = {
        "y": y,
        "rows": rows,
        "weights": weights,
        "window": window,
        "out": out,
        "num_cols": y.shape[1],
        "num_experts": 0 if window is None else len(window) - 1,
        "y_stride": y.stride(0),
        "out_stride": out.stride(0),
    }
    grid = (num_tokens, ceil_div(y.shape[1], COLUMNS))
    constants = {"TOP_K": top_k, "CHOICES": power_of_two(top_k), "ADD": add, "COLUMNS": COLUMNS}
    return Launch(_combine_kernel, grid, arguments, constants, 4, 1)

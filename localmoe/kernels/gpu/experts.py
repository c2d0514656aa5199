"""Matrix products over the experts of a group: tokens sorted by expert, each expert's weights read in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.expert_tile import find_tile, multiply_tile
from localmoe.kernels.gpu.launch import Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import BLOCK, Activations, Weights, check, check_packed, check_together
from localmoe.kernels.gpu.tiles import Form, MatmulKind, Tile, matmul_tile, persistent_tile

TILES_TOGETHER = 8  # tiles of rows that follow each other over the same weights, for the L2 cache


@triton.jit
def _experts_kernel(
    x, x_scale, tokens, offsets, gate, gate_scale, up, up_scale, out,
    num_experts, num_cols, num_rows, x_stride, w_stride, w_scale_stride, out_stride,
    FORM: tl.constexpr, GATED: tl.constexpr, EVEN_K: tl.constexpr, TOGETHER: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of out[s] = silu(gate x) * (up x), or of gate x; s a sorted row, x the row of its token."""
    expert, row, stop, n_tile = find_tile(
        tl.program_id(0), offsets, num_experts, tl.cdiv(num_rows, BLOCK_N), BLOCK_M, TOGETHER, EXPERTS
    )
    if expert >= num_experts:
        return
    multiply_tile(
        expert, row, stop, n_tile, x, x_scale, tokens, gate, gate_scale, up, up_scale, out,
        num_cols, num_rows, x_stride, w_stride, w_scale_stride, out_stride,
        FORM, GATED, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
    )  # fmt: skip


def gate_up(
    chip: Chip, x: Activations, tokens: Tensor, offsets: Tensor, gate: Weights, up: Weights, out: Tensor, rows: int,
    *, stays: bool = False,
) -> Launch:  # fmt: skip
    """out[s] = silu(gate x) * (up x) for the sorted rows s of this group's experts, x the row `tokens[s]`.

    tokens [S] int32; offsets [G + 1] int32, positions in `tokens`: expert g has rows offsets[g] to offsets[g + 1].
    out [S, I] bfloat16, other rows untouched. `rows`: of an expert, as expected; it only chooses the tile.
    `stays`: with the tile of programs that stay, for persistent.persistent.
    """
    assert up.weight.shape == gate.weight.shape and up.weight.stride() == gate.weight.stride(), "gate and up differ"
    assert up.weight.dtype == gate.weight.dtype, "gate and up differ in dtype"
    if gate.scale is not None and up.scale is not None:
        assert up.scale.stride() == gate.scale.stride(), "the scales of gate and up lie differently"
    check(tokens, "tokens", (len(tokens),), torch.int32)
    form = gate.form(chip, x.is_quantised)
    return _launch(x, tokens, offsets, gate, up, out, _tile("gate_up", form, chip, rows, stays), chip)


def down(
    chip: Chip, x: Activations, offsets: Tensor, weights: Weights, out: Tensor, rows: int, *, stays: bool = False
) -> Launch:
    """out[s] = weights x[s] for the sorted rows s of this group's experts: out [S, H] bfloat16 or float32."""
    assert len(x.values) == len(out), f"{len(x.values)} rows in, {len(out)} out"
    form = weights.form(chip, x.is_quantised)
    return _launch(x, None, offsets, weights, None, out, _tile("matmul", form, chip, rows, stays), chip)


def _tile(kind: MatmulKind, form: Form, chip: Chip, rows: int, stays: bool) -> Tile:
    return persistent_tile(kind, form, chip) if stays else matmul_tile(kind, form, chip, rows)


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
            "STAGES": tile.num_stages,
        },
        tile.num_warps,
        tile.num_stages,
    )

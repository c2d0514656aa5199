"""The experts' products in a persistent form: resident programs take tile after tile, and look up between two.

    the board says                                 a program
    there are urgent tickets                       takes one, and computes that tile
    somebody asks for the processors               leaves; a later launch goes on from the counter
    else                                           takes the next bulk tile; leaves where there is none

Whoever has taken a tile finishes it, and nothing is carried from one to the next, so every tile is computed once
however often programs leave. What was asked for waits for one tile at most: a program looks after each.

A tile of DeepSeek-V3's gate and up, and of its down, takes at least so many microseconds where all multiprocessors
are as busy (v3.Case.tile_s; every form and chip is in assets/bench/gpu_kernels.csv):

    chip                        FP8          decoded to BF16
    sm_80  (A100)                             51.1   14.6
    sm_86  (RTX 3090)                        135.6   38.8
    sm_89  (RTX 4090)      116.3   33.2      116.3   33.2
    sm_90  (H200)           25.2    7.2       31.3    9.0
    sm_120 (RTX 5090)       87.1   24.9       95.5   27.3

All threads of a program must see the same board, or they would part ways. So each word is loaded by one thread and
reaches the others through a sum; and what others write while programs are resident is only read behind an atomic
operation that acquires it, since the first-level cache does not follow.
"""

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu import board as words
from localmoe.kernels.gpu.board import Board
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.expert_tile import find_tile, multiply_tile
from localmoe.kernels.gpu.launch import Launch, ceil_div, power_of_two
from localmoe.kernels.gpu.matrix import BLOCK
from localmoe.kernels.gpu.tiles import Form, Tile, matmul_tile

_NEXT, _OVER = tl.constexpr(words.NEXT), tl.constexpr(words.OVER)
_ANSWERED = tl.constexpr(words.ANSWERED)
_URGENT_NEXT, _URGENT_END = tl.constexpr(words.URGENT_NEXT), tl.constexpr(words.URGENT_END)
_URGENT_DONE, _NUM_COUNTERS = tl.constexpr(words.URGENT_DONE), tl.constexpr(words.NUM_COUNTERS)
_UNIT, _STRIDE_UNIT = tl.constexpr(words.UNIT), tl.constexpr(words.STRIDE_UNIT)
# Of Job, in the order of its fields.
(
    _X, _X_SCALE, _TOKENS, _OFFSETS, _GATE, _GATE_SCALE, _UP, _UP_SCALE, _OUT, _NUM_EXPERTS, _COLS, _ROWS,
    _X_STRIDE, _W_STRIDE, _W_SCALE_STRIDE, _OUT_STRIDE, _IS_GATED, _FIRST, _END, _NUMBER,
) = (tl.constexpr(n) for n in range(words.NUM_FIELDS))  # fmt: skip
THREADS_WARP = 32
LANES_THREAD = 4  # of what is looked at: so that no two threads load the same word, however it is spread


@triton.jit
def _pick(lane, board, n):
    return tl.sum(tl.where(lane == n, board, 0), 0)


@triton.jit
def _look(counters, asked, passing, LANES: tl.constexpr):
    """The next urgent ticket, how many there are, and whether somebody asks for the processors."""
    lane = tl.arange(0, LANES)
    board = tl.load(counters + lane, mask=lane < _NUM_COUNTERS, other=0, volatile=True)
    requests = tl.load(tl.where(lane == 0, asked, passing), mask=lane < 2, other=0, volatile=True).to(tl.int64)
    leaves = tl.sum(requests, 0) > _pick(lane, board, _ANSWERED)
    return _pick(lane, board, _URGENT_NEXT), _pick(lane, board, _URGENT_END), leaves


@triton.jit
def _field(job, n):
    return tl.load(job + n, volatile=True)


@triton.jit
def _address(job, n, like):
    """What lies in a field, as a pointer of the same kind as `like`; 16 divides it."""
    return tl.multiple_of(_field(job, n).to(like.dtype), 16)


@triton.jit
def _urgent_tile(
    ticket, job, x, x_scale, offsets, weight, weight_scale, out,
    FORM: tl.constexpr, GATED: tl.constexpr, TOGETHER: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of the job on the board; no tile has a ticket behind the last one's. Pointers are of the kinds of the bulk's."""
    num_experts, num_rows = _field(job, _NUM_EXPERTS).to(tl.int32), _field(job, _ROWS).to(tl.int32)
    places = _field(job, _OFFSETS).to(offsets.dtype)
    tile = (ticket - _field(job, _FIRST)).to(tl.int32)
    expert, row, stop, n_tile = find_tile(
        tile, places, num_experts, tl.cdiv(num_rows, BLOCK_N), BLOCK_M, TOGETHER, EXPERTS
    )
    if expert < num_experts:
        tokens, up, x_factor, w_factor, up_factor = None, None, None, None, None
        if GATED:
            tokens = _field(job, _TOKENS).to(offsets.dtype)
            up = _address(job, _UP, weight)
        if FORM != "bf16":
            w_factor = _field(job, _GATE_SCALE).to(weight_scale.dtype)
            if GATED:
                up_factor = _field(job, _UP_SCALE).to(weight_scale.dtype)
        if FORM == "fp8":
            x_factor = _field(job, _X_SCALE).to(x_scale.dtype)
        multiply_tile(
            expert, row, stop, n_tile, _address(job, _X, x), x_factor, tokens,
            _address(job, _GATE, weight), w_factor, up, up_factor, _address(job, _OUT, out),
            _field(job, _COLS).to(tl.int32) * _UNIT, num_rows, _field(job, _X_STRIDE).to(tl.int32) * _UNIT,
            _field(job, _W_STRIDE) * _STRIDE_UNIT, _field(job, _W_SCALE_STRIDE),
            _field(job, _OUT_STRIDE).to(tl.int32) * _UNIT,
            FORM, GATED, True, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        )  # fmt: skip


@triton.jit
def _persistent_kernel(
    x, x_scale, tokens, offsets, gate, gate_scale, up, up_scale, out,
    num_experts, num_cols, num_rows, x_stride, w_stride, w_scale_stride, out_stride,
    counters, asked, passing, job, finished,
    FORM: tl.constexpr, GATED: tl.constexpr, EVEN_K: tl.constexpr, TOGETHER: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    BULK: tl.constexpr, LANES: tl.constexpr, URGENT: tl.constexpr, URGENT_EXPERTS: tl.constexpr,
    URGENT_M: tl.constexpr, URGENT_N: tl.constexpr, URGENT_K: tl.constexpr, URGENT_STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles as experts._experts_kernel computes them, one after the other. Not BULK: urgent ones only."""
    going = True
    while going:
        ticket, end, leaves = _look(counters, asked, passing, LANES)
        if URGENT and ticket < end:
            if tl.atomic_cas(counters + _URGENT_NEXT, ticket, ticket + 1) == ticket:  # else another one has it
                if _field(job, _IS_GATED) != 0:
                    _urgent_tile(
                        ticket, job, x, x_scale, offsets, gate, gate_scale, out, FORM, True, TOGETHER, URGENT_EXPERTS,
                        URGENT_M, URGENT_N, URGENT_K, URGENT_STAGES,
                    )  # fmt: skip
                else:
                    _urgent_tile(
                        ticket, job, x, x_scale, offsets, gate, gate_scale, out, FORM, False, TOGETHER, URGENT_EXPERTS,
                        URGENT_M, URGENT_N, URGENT_K, URGENT_STAGES,
                    )  # fmt: skip
                last, number = _field(job, _END), _field(job, _NUMBER)  # before others may open the next job
                tl.debug_barrier()  # all threads have written what they computed
                if tl.atomic_add(counters + _URGENT_DONE, 1, scope="sys") + 1 == last:
                    tl.store(finished, number.to(tl.int32), cache_modifier=".wt")
        elif BULK:
            going = not leaves
            if going:
                tile = tl.atomic_add(counters + _NEXT, 1).to(tl.int32)
                expert, row, stop, n_tile = find_tile(
                    tile, offsets, num_experts, tl.cdiv(num_rows, BLOCK_N), BLOCK_M, TOGETHER, EXPERTS
                )
                going = expert < num_experts
                if going:
                    multiply_tile(
                        expert, row, stop, n_tile, x, x_scale, tokens, gate, gate_scale, up, up_scale, out,
                        num_cols, num_rows, x_stride, w_stride, w_scale_stride, out_stride,
                        FORM, GATED, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                    )  # fmt: skip
                else:
                    tl.store(counters + _OVER, 1)
        else:
            going = False


def persistent(
    product: Launch, board: Board, chip: Chip, num_sms: int, *, reserved: int = 0, urgent_experts: int = 0
) -> Launch:
    """`product`, of experts.gate_up or experts.down, by programs that stay: one each on `num_sms` - `reserved`.

    `urgent_experts`: the most that an urgent job has; 0: none comes. A product's first launch comes behind
    Board.begin; further ones go on, and do nothing where no tile is left.
    """
    assert 0 <= reserved < num_sms, f"{reserved} of {num_sms} processors are reserved"
    programs = min(num_sms - reserved, product.grid[0])
    return _launch(product, board, chip, programs, urgent_experts, is_bulk=True)


def drain(product: Launch, board: Board, chip: Chip, programs: int, urgent_experts: int) -> Launch:
    """Programs that compute urgent tiles until there is none; of `product` only what kinds of values it has counts."""
    assert programs > 0 and urgent_experts > 0, "nothing would be computed"
    return _launch(product, board, chip, programs, urgent_experts, is_bulk=False)


def urgent_tickets(product: Launch, chip: Chip) -> int:
    """Tiles that `product` has at most as an urgent job: each expert's last tile may be part full."""
    tile, out, offsets = _urgent_tile_of(product, chip), product.args["out"], product.args["offsets"]
    assert isinstance(out, Tensor) and isinstance(offsets, Tensor)
    rows = len(out) // tile.block_m + min(len(offsets) - 1, len(out))
    return rows * ceil_div(out.shape[1], tile.block_n)


def _urgent_tile_of(product: Launch, chip: Chip) -> Tile:
    """For few rows, whatever the product."""
    form: Form = product.constants["FORM"]
    return matmul_tile("gate_up", form, chip, 1)


def _launch(product: Launch, board: Board, chip: Chip, programs: int, urgent_experts: int, *, is_bulk: bool) -> Launch:
    constants = product.constants
    if urgent_experts:
        assert constants["EVEN_K"], f"urgent jobs have columns that {BLOCK} divides"
    small = _urgent_tile_of(product, chip)
    requests = {"asked": board.asked, "passing": board.passing}
    words = {"counters": board.counters, **requests, "job": board.job, "finished": board.finished}
    return replace(
        product,
        kernel=_persistent_kernel,
        grid=(programs,),
        args={**product.args, **words},
        constants={
            **constants,
            "BULK": is_bulk,
            "LANES": LANES_THREAD * THREADS_WARP * product.num_warps,
            "URGENT": urgent_experts > 0,
            "URGENT_EXPERTS": power_of_two(max(urgent_experts, 1)),
            "URGENT_M": small.block_m,
            "URGENT_N": small.block_n,
            "URGENT_K": small.block_k,
            "URGENT_STAGES": small.num_stages,
        },
    )

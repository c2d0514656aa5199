"""Every kernel at DeepSeek-V3's shapes, on the meta device: what is compiled ahead of time, with its work.

A case's floor is the time that its arithmetic or its bytes take at the chip's peak, whichever is longer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from localmoe.kernels.gpu import (
    absorb,
    combine,
    decode_attention,
    experts,
    latent,
    linear,
    norm,
    persistent,
    prefill_attention,
    route,
)
from localmoe.kernels.gpu.board import Board
from localmoe.kernels.gpu.chips import CHIPS, Chip
from localmoe.kernels.gpu.launch import Launch, ceil_div
from localmoe.kernels.gpu.matrix import BLOCK, FP8, Activations, Weights
from localmoe.kernels.gpu.quantise import quantise
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.gpu.tiles import Form
from localmoe.kernels.ops import PAGE_TOKENS, MlaShape, Router

HIDDEN, INTER, NUM_EXPERTS, TOP_K, HEADS = 7168, 2048, 256, 8, 128
GROUP = 16  # experts in a slot
SHAPE = MlaShape(HEADS, 128, 64, 128, 512, 192**-0.5)
WIDTH = SHAPE.rank + SHAPE.rope_dim
ROUTER = Router(NUM_EXPERTS, TOP_K, 8, 4, scale=2.5, bias=np.zeros(NUM_EXPERTS, np.float32))
ROWS = (1, 64, 1024)  # of an expert
TOKENS = (1, 64, 4096)  # of a dense product
DENSE = {"q_b": (24576, 1536), "kv_a": (576, 7168), "out": (7168, 16384)}  # rows, columns
PROMPT, CONTEXT = 4096, 32768
MANY = ROWS[-1]
RESERVED = 4  # multiprocessors, for what is urgent
FORMS: tuple[Form, ...] = ("fp8", "decoded", "bf16")


@dataclass(frozen=True)
class Case:
    """A launch and its work. `matrix_type` is the operands' of its matrix instructions; None: it needs none."""

    kernel: str
    case: str
    matrix_type: str | None  # "e4m3" or "bf16"
    launch: Callable[[Chip], Launch]
    flops: float
    num_bytes: float  # that must come from or go to memory at least once
    is_persistent: bool = False  # programs that stay: what waits for them waits for one tile

    @property
    def name(self) -> str:
        """Kernel and case."""
        return f"{self.kernel}-{self.case}"

    def runs_on(self, chip: Chip) -> bool:
        """Whether the chip has the matrix units, or the conversions, that it needs."""
        return chip.has_fp8 or (self.matrix_type != "e4m3" and not self.kernel.startswith("quantise"))

    def floor_s(self, chip: Chip) -> float:
        """Seconds that it takes at the least."""
        rate = chip.fp8_flops if self.matrix_type == "e4m3" else chip.bf16_flops
        return max(self.num_bytes / chip.bytes_s, self.flops / rate if self.matrix_type else 0.0)

    def is_memory_bound(self, chip: Chip) -> bool:
        """Whether its bytes are the longer part of the floor."""
        return self.floor_s(chip) == self.num_bytes / chip.bytes_s

    def tile_s(self, chip: Chip) -> float | None:
        """Seconds of one tile of an experts' product at the least, if all multiprocessors are as busy; else None."""
        launch = self.launch(chip)
        c = launch.constants
        if "GATED" not in c:
            return None
        weight = launch.args["gate"]
        assert isinstance(weight, Tensor)
        matrices, cols = (2 if c["GATED"] else 1), weight.shape[2]
        high, wide = (c["URGENT_M"], c["URGENT_N"]) if self.kernel == "urgent" else (c["BLOCK_M"], c["BLOCK_N"])
        rate = chip.fp8_flops if c["FORM"] == "fp8" else chip.bf16_flops
        products = matrices * wide * cols
        seconds = max(2 * high * products / rate, products * weight.element_size() / chip.bytes_s)
        return float(seconds * chip.num_sms)


def cases() -> list[Case]:
    """All of them."""
    return [*_experts(), *_dense(), *_attention(), *_tokens(), *_persistent()]


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def _weights(count: int, rows: int, cols: int, form: Form) -> Weights:
    if form == "bf16":
        return Weights(empty(count, rows, cols))
    blocks = ceil_div(rows, BLOCK), ceil_div(cols, BLOCK)
    return Weights(empty(count, rows, cols, dtype=FP8), empty(count, *blocks, dtype=torch.float32))


def _activations(rows: int, cols: int, form: Form) -> Activations:
    if form != "fp8":
        return Activations(empty(rows, cols))
    return Activations(empty(rows, cols, dtype=FP8), empty(rows, cols // BLOCK, dtype=torch.float32))


def _sizes(form: Form) -> tuple[int, int]:
    """Bytes of a weight and of an activation."""
    return (2 if form == "bf16" else 1), (1 if form == "fp8" else 2)


def _matrix_type(form: Form) -> str:
    return "e4m3" if form == "fp8" else "bf16"


def _experts() -> Iterator[Case]:
    for form in FORMS:
        for rows in ROWS:
            num_rows = rows * GROUP
            weight, activation = _sizes(form)
            product = GROUP * HIDDEN * INTER
            yield Case(
                "gate_up", f"{form}-{rows}", _matrix_type(form), _gate_up(form, rows),
                4 * num_rows * HIDDEN * INTER, 2 * product * weight + num_rows * (HIDDEN * activation + 2 * INTER),
            )  # fmt: skip
            yield Case(
                "down", f"{form}-{rows}", _matrix_type(form), _down(form, rows),
                2 * num_rows * HIDDEN * INTER, product * weight + num_rows * (INTER * activation + 2 * HIDDEN),
            )  # fmt: skip


def _gate_up(form: Form, rows: int, *, stays: bool = False) -> Callable[[Chip], Launch]:
    num_rows, i32 = rows * GROUP, torch.int32
    w = _weights(GROUP, INTER, HIDDEN, form)
    x, tokens, offsets = _activations(num_rows, HIDDEN, form), empty(num_rows, dtype=i32), empty(GROUP + 1, dtype=i32)
    return lambda chip: experts.gate_up(chip, x, tokens, offsets, w, w, empty(num_rows, INTER), rows, stays=stays)


def _down(form: Form, rows: int, *, stays: bool = False) -> Callable[[Chip], Launch]:
    num_rows = rows * GROUP
    w, x = _weights(GROUP, HIDDEN, INTER, form), _activations(num_rows, INTER, form)
    offsets = empty(GROUP + 1, dtype=torch.int32)
    return lambda chip: experts.down(chip, x, offsets, w, empty(num_rows, HIDDEN), rows, stays=stays)


def _persistent() -> Iterator[Case]:
    """As _experts has them with many rows, by programs that stay and look for urgent jobs of as many experts."""
    products = {case.name: case for case in _experts()}
    for form in FORMS:
        for kernel, launch in (("gate_up", _gate_up), ("down", _down)):
            case = products[f"{kernel}-{form}-{MANY}"]
            yield replace(
                case,
                kernel=f"persistent_{kernel}",
                launch=_resident(launch(form, MANY, stays=True)),
                is_persistent=True,
            )
        yield replace(products[f"gate_up-{form}-1"], kernel="urgent", launch=_urgent(form), is_persistent=True)


def gate_up_case(form: Form, *, stays: bool) -> Callable[[Chip], Launch]:
    """Of many tokens, with the tile of one program each, or of programs that stay."""
    return _gate_up(form, MANY, stays=stays)


def _resident(product: Callable[[Chip], Launch]) -> Callable[[Chip], Launch]:
    return lambda chip: persistent.persistent(
        product(chip), _board(), chip, chip.num_sms, reserved=RESERVED, urgent_experts=GROUP
    )


def _urgent(form: Form) -> Callable[[Chip], Launch]:
    product = _gate_up(form, 1, stays=True)
    return lambda chip: persistent.drain(product(chip), _board(), chip, RESERVED, GROUP)


def _board() -> Board:
    return Board(Gpu(torch.device("meta"), CHIPS[80]), *(empty(1, dtype=torch.int32) for _ in range(3)))


def _dense() -> Iterator[Case]:
    for name, (rows, cols) in DENSE.items():
        for form in FORMS:
            for tokens in TOKENS:
                weight, activation = _sizes(form)
                num_bytes = rows * cols * weight + tokens * (cols * activation + 2 * rows)
                launch = _linear(form, rows, cols, tokens)
                flops = 2 * tokens * rows * cols
                yield Case("linear", f"{name}-{form}-{tokens}", _matrix_type(form), launch, flops, num_bytes)


def _linear(form: Form, rows: int, cols: int, tokens: int) -> Callable[[Chip], Launch]:
    w, x, out = _weights(1, rows, cols, form), _activations(tokens, cols, form), empty(tokens, rows)

    def launch(chip: Chip) -> Launch:
        splits = linear.num_splits(chip, tokens, w, form == "fp8")
        partial = empty(splits, tokens, rows, dtype=torch.float32) if splits > 1 else None
        return linear.linear(chip, x, w, out, partial)[0]

    return launch


def _attention() -> Iterator[Case]:
    row = WIDTH * 2
    for queries in (1, 8):
        products = 2 * queries * HEADS * CONTEXT * (WIDTH + SHAPE.rank)
        for index, kernel in enumerate(("decode_attention", "merge_splits")):
            flops, num_bytes = (products, queries * CONTEXT * row) if index == 0 else (0.0, queries * HEADS * 2 * 512)
            matrix_type = "bf16" if index == 0 else None
            yield Case(kernel, f"{queries}x32k", matrix_type, _decode(queries, index), flops, num_bytes)
    for prefix in (0, CONTEXT - PROMPT):
        keys = prefix + PROMPT
        pairs = PROMPT * prefix + PROMPT * (PROMPT + 1) / 2
        flops = 2 * HEADS * pairs * (SHAPE.nope_dim + SHAPE.rope_dim + SHAPE.v_dim)
        num_bytes = 2 * HEADS * (PROMPT * (192 + 128) + keys * 256) + 2 * keys * SHAPE.rope_dim
        yield Case("prefill_attention", f"4k-of-{keys // 1024}k", "bf16", _prefill(keys), flops, num_bytes)
    kv_b = _weights(1, HEADS * 256, SHAPE.rank, "fp8")
    half, flops = kv_b.rows * kv_b.cols / 2, 2.0 * HEADS * 128 * SHAPE.rank
    q, latent, out = empty(1, HEADS, 192)[..., :128], empty(1, HEADS, WIDTH)[..., :512], empty(1, HEADS, 128)
    yield Case(
        "absorb_queries", "1", "bf16", lambda _: absorb.absorb_queries(q, kv_b, SHAPE, latent), flops, half
    )  # fmt: skip
    yield Case(
        "expand_outputs", "1", "bf16", lambda _: absorb.expand_outputs(latent, kv_b, SHAPE, out), flops, half
    )  # fmt: skip


def _decode(queries: int, index: int) -> Callable[[Chip], Launch]:
    pages = ceil_div(CONTEXT, PAGE_TOKENS)
    q, cache = empty(queries, HEADS, WIDTH), empty(queries * pages, PAGE_TOKENS, WIDTH)
    table, lengths = empty(queries, pages, dtype=torch.int32), empty(queries, dtype=torch.int32)
    out = empty(queries, HEADS, SHAPE.rank)

    def launch(chip: Chip) -> Launch:
        splits = decode_attention.num_splits(chip, queries, HEADS, CONTEXT)
        partial = empty(queries, splits, HEADS, SHAPE.rank, dtype=torch.float32)
        logs = empty(queries, splits, HEADS, dtype=torch.float32)
        return decode_attention.decode_attention(
            chip, q, cache, table, lengths, SHAPE.softmax_scale, partial, logs, out
        )[index]

    return launch


def _prefill(keys: int) -> Callable[[Chip], Launch]:
    q, kv, out = empty(PROMPT, HEADS * 192), empty(keys, HEADS * 256), empty(PROMPT, HEADS * 128)
    key = empty(keys, WIDTH)[:, SHAPE.rank :]
    return lambda chip: prefill_attention.prefill_attention(chip, q, kv, key, SHAPE, out)


def _tokens() -> Iterator[Case]:
    f32, i32 = torch.float32, torch.int32
    x, residual, weight = empty(PROMPT, HIDDEN), empty(PROMPT, HIDDEN, dtype=f32), empty(HIDDEN, dtype=f32)
    codes, scale = empty(PROMPT, HIDDEN, dtype=FP8), empty(PROMPT, HIDDEN // BLOCK, dtype=f32)
    y, q, table = empty(PROMPT * TOP_K, HIDDEN), empty(PROMPT, HEADS * 192), empty(PROMPT, SHAPE.rope_dim, dtype=f32)
    logits, bias = empty(PROMPT, NUM_EXPERTS, dtype=f32), empty(NUM_EXPERTS, dtype=f32)
    ids, shares = empty(PROMPT, TOP_K, dtype=i32), empty(PROMPT, TOP_K, dtype=f32)
    group = empty(GROUP + 1, dtype=i32)
    kv, rows, cache = empty(PROMPT, WIDTH), empty(PROMPT, dtype=i32), empty(512, PAGE_TOKENS, WIDTH)
    launches: dict[str, tuple[Callable[[Chip], Launch], float]] = {
        "quantise": (lambda _: quantise(x, codes, scale), x.numel() * 3 + scale.numel() * 4),
        "quantise_group": (lambda _: quantise(x, codes, scale, window=group), x.numel() * 3 + scale.numel() * 4),
        "silu_mul": (lambda _: norm.silu_mul(x, x), x.numel() * 6),
        "combine_group": (
            lambda _: combine.combine(y, ids, shares, residual, True, group),
            y.numel() * 2 + residual.numel() * 8,
        ),
        "combine": (lambda _: combine.combine(y, ids, shares, residual, True), y.numel() * 2 + residual.numel() * 8),
        "route": (lambda _: route.route(logits, ROUTER, bias, ids, shares), logits.numel() * 4 + ids.numel() * 8),
        "rms_norm": (lambda _: norm.rms_norm(x, weight, 1e-6, x, residual), x.numel() * 4 + residual.numel() * 8),
        "append_latent": (
            lambda _: latent.append_latent(kv, weight[: SHAPE.rank], 1e-6, table, True, rows, cache),
            kv.numel() * 4 + table.numel() * 4,
        ),
        "rotate": (lambda _: norm.rotate(q, table, 192, True), q.numel() // 3 * 4),
    }
    for kernel, (launch, num_bytes) in launches.items():
        yield Case(kernel, "4k", None, launch, 0.0, num_bytes)

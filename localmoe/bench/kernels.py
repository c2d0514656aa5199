"""Suite kernels: each kernel at DeepSeek-V3's shapes, beside what the same cores can do at best.

Where memory is the limit that is the fastest streaming read of the same bytes, where arithmetic is it is a chain of
FMAs in registers. Both are measured in turn with the kernel, and the ratio is the median of the pairs.
"""

from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.bench.kernel_program import SCALE, KernelProgram, Workers, bytes_of, codes, scales
from localmoe.bench.rows import Listener, Row
from localmoe.errors import UsageError
from localmoe.hardware import available_memory, physical_cores
from localmoe.hardware.placement import worker_cpus
from localmoe.settings import Settings

HIDDEN, INTER, TOP_K = 7168, 2048, 8
HEADS, NOPE, ROPE, VALUE, RANK = 128, 128, 64, 128, 512
CONTEXT = 4096
NUM_EXPERTS = 3 * TOP_K  # three times what a token uses: 1.06 GB, more than the caches hold
MOE_TOKENS = (1, 2, 4, 8)
GEMM_TOKENS = (48, 256)
NUM_PAIRS = 9


def measure(settings: Settings, listener: Listener) -> Iterator[Row]:
    """All rows that memory allows."""
    workers = make_workers(settings)
    yield from _attention_rows(workers, listener)
    yield from _gemm_rows(workers, listener)
    expert_bytes = 3 * HIDDEN * INTER
    if available_memory() < 2 * NUM_EXPERTS * expert_bytes:
        listener.warn(f"gemv and moe are left out: they take {NUM_EXPERTS * expert_bytes / 1e9:.1f} GB of memory")
        return
    blob = codes(NUM_EXPERTS, expert_bytes + 4 * scales(INTER, HIDDEN).size * 3)
    variant = fastest_read(workers, bytes_of(blob))
    yield _gemv_row(workers, blob, variant, listener)
    for num_tokens in MOE_TOKENS:
        yield _moe_row(workers, blob, num_tokens, variant, listener)


def make_workers(settings: Settings) -> Workers:
    """As many as an answer would have."""
    cores = physical_cores()
    count = settings.threads or (cores - 1 if cores > 2 else cores)
    try:
        target = str(native.check_target(settings.isa or ""))
    except ValueError as error:
        raise UsageError(f"{error}", f"this machine runs: {', '.join(native.supported_targets())}") from error
    return Workers(native.Pool(worker_cpus(count)), target)


def fastest_read(workers: Workers, data: NDArray[np.uint8]) -> int:
    """The streaming-read variant that is the quickest here and now."""
    variants = range(len(native.reader_names(workers.target)))
    return min(variants, key=lambda v: median(_read_s(workers, data, v) for _ in range(3)))


def _gemv_row(workers: Workers, blob: NDArray[np.uint8], variant: int, listener: Listener) -> Row:
    """One token through matrices that lie one after the other, each of them used once."""
    listener.progress("gemv: one token, FP8")
    matrices = bytes_of(blob)[: NUM_EXPERTS * 3 * HIDDEN * INTER].reshape(-1, INTER, HIDDEN)
    program = KernelProgram(workers, 1)
    x, y, scale = program.input(HIDDEN), program.rows(INTER), scales(INTER, HIDDEN)
    for matrix in matrices:
        program.recorded.linear(x, matrix, scale, y)
    timed, data = program.ready(), bytes_of(matrices)
    return _bandwidth_row(
        "gemv", data.size, workers, lambda n: timed.seconds(), lambda n: _read_s(workers, data, variant)
    )


def _moe_row(workers: Workers, blob: NDArray[np.uint8], num_tokens: int, variant: int, listener: Listener) -> Row:
    """The routed experts of a layer; all tokens choose the same ones, others in each run."""
    listener.progress(f"moe-{num_tokens}: {TOP_K} experts of DeepSeek-V3")
    program = KernelProgram(workers, num_tokens)
    x, logits, weights = program.input(HIDDEN), program.input(NUM_EXPERTS), program.rows(TOP_K)
    router = native.RouterShape(NUM_EXPERTS, TOP_K, 1, 1, True, True, True, 2.5)
    layer = program.recorded.route(logits, router, None, weights)
    part = native.ExpertPart(blob, *_placements(blob))
    program.recorded.experts(x, layer, weights, [part], program.rows(HIDDEN))
    timed = program.ready()

    def run_s(turn: int) -> float:
        chosen = np.arange(TOP_K, dtype=np.int32) + _first(2 * turn)
        return timed.seconds(np.broadcast_to(chosen, (1, num_tokens, TOP_K)).copy())

    def read_s(turn: int) -> float:
        first = _first(2 * turn + 1)
        return _read_s(workers, bytes_of(blob[first : first + TOP_K]), variant)

    return _bandwidth_row(f"moe-{num_tokens}", TOP_K * blob.shape[1], workers, run_s, read_s)


def _first(turn: int) -> int:
    """The first of the experts that take their turn: those used longest ago."""
    return turn * TOP_K % NUM_EXPERTS


def _placements(blob: NDArray[np.uint8]) -> list[native.ExpertMatrix]:
    """gate, up and down, then their scales, which are written here."""
    size, floats = HIDDEN * INTER, scales(INTER, HIDDEN).size
    blob[:, 3 * size :].view(np.float32)[:] = SCALE
    shapes = ((INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER))
    return [
        native.ExpertMatrix(n * size, 3 * size + n * floats * 4, rows, cols, False)
        for n, (rows, cols) in enumerate(shapes)
    ]


def _gemm_rows(workers: Workers, listener: Listener) -> Iterator[Row]:
    """Many tokens through FP8 matrices."""
    for num_tokens in GEMM_TOKENS:
        listener.progress(f"gemm-{num_tokens}: {num_tokens} tokens, FP8")
        program = KernelProgram(workers, num_tokens)
        matrices = codes(max(1, 384 // num_tokens), INTER, HIDDEN)
        x, y, scale = program.input(HIDDEN), program.rows(INTER), scales(INTER, HIDDEN)
        for matrix in matrices:
            program.recorded.linear(x, matrix, scale, y)
        yield _arithmetic_row(f"gemm-{num_tokens}", 2.0 * num_tokens * matrices.size, workers, program.ready().seconds)


def _attention_rows(workers: Workers, listener: Listener) -> Iterator[Row]:
    """One token's attention over a full latent cache: scores and sums over latents, and kv_b on both sides."""
    listener.progress("attention-4k: one token over 4,096")
    program = KernelProgram(workers, 1)
    q, out = program.input(HEADS * (NOPE + ROPE)), program.rows(HEADS * VALUE)
    cache = np.random.default_rng(0).standard_normal((CONTEXT // 64, 64, RANK + ROPE), np.float32)
    kv_b = codes(HEADS * (NOPE + VALUE), RANK)
    shape = native.MlaShape(HEADS, NOPE, ROPE, VALUE, RANK, (NOPE + ROPE) ** -0.5)
    program.recorded.mla_attention(q, cache, kv_b, scales(*kv_b.shape), shape, out)
    flops = 2.0 * HEADS * CONTEXT * (2 * RANK + ROPE) + 2.0 * kv_b.size
    yield _arithmetic_row("attention-4k", flops, workers, program.ready(CONTEXT - 1).seconds)


def _bandwidth_row(
    case: str, num_bytes: int, workers: Workers, ours: Callable[[int], float], read: Callable[[int], float]
) -> Row:
    ours(0), read(0)
    pairs = [(ours(n), read(n)) for n in range(1, NUM_PAIRS + 1)]
    value, reference = (num_bytes / median(side) / 1e9 for side in zip(*pairs, strict=True))
    ratio = median(read_s / our_s for our_s, read_s in pairs)
    return Row("kernels", case, "gb_s", value, "GB/s", reference, ratio, workers.target)


def _arithmetic_row(case: str, flops: float, workers: Workers, ours: Callable[[], float]) -> Row:
    ours()
    pairs = [(flops / ours() / 1e9, native.fma_flops(workers.pool, workers.target) / 1e9) for _ in range(NUM_PAIRS)]
    value, reference = (median(side) for side in zip(*pairs, strict=True))
    return Row("kernels", case, "gflop_s", value, "GFLOP/s", reference, median(a / b for a, b in pairs), workers.target)


def _read_s(workers: Workers, data: NDArray[np.uint8], variant: int) -> float:
    return float(native.read_seconds(workers.pool, data, variant, workers.target))

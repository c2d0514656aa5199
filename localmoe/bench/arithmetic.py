"""Kernels that arithmetic limits, beside the cores' FMA peak: chains in registers, by the same threads."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from localmoe import _native as native
from localmoe.bench.kernel_program import PAGE_TOKENS, KernelProgram, Timed, Workers, aligned, codes, scales
from localmoe.bench.pairs import in_turn
from localmoe.bench.rows import Listener, Row
from localmoe.bench.shapes import Shapes

AGAINST = "FMA peak"
MOST_HEADS = 128
NUM_TRIALS = 3
NUM_PEAKS = 3  # of which the best counts


def measure(workers: Workers, shapes: Shapes, listener: Listener) -> Iterator[Row]:
    """Attention and GEMMs."""
    yield from _prompt_rows(workers, shapes, listener)
    yield from _token_rows(workers, shapes, listener)
    yield from _gemm_rows(workers, shapes, listener)


def fma_peak(workers: Workers) -> float:
    """FLOP/s of all workers: the best of a few trials."""
    return max(float(native.fma_flops(workers.pool, workers.target)) for _ in range(NUM_PEAKS))


def _prompt_rows(workers: Workers, s: Shapes, listener: Listener) -> Iterator[Row]:
    """A prompt's attention to itself: all of it at once, and its last chunk alone.

    What counts is what a causal prompt needs: scores and sums of each token over itself and those before it, and
    keys and values of the whole context, once a call.
    """
    heads = min(MOST_HEADS, max(s.few_heads, 2 * workers.pool.num_workers))
    for case, tokens in (("attention-4k", s.context), ("attention-4k-chunk", s.chunk)):
        listener.progress(f"{case}: {tokens:,} tokens of {s.context:,}")
        start = s.context - tokens
        keys_read = tokens * start + tokens * (tokens + 1) // 2
        flops = 2.0 * heads * (keys_read * (s.nope + s.rope + s.value) + s.context * s.rank * (s.nope + s.value))
        yield _row(case, flops, workers, s, attention_program(workers, s, heads, tokens, start).seconds)


def _token_rows(workers: Workers, s: Shapes, listener: Listener) -> Iterator[Row]:
    """What a context adds to one token's attention: scores and sums over all latents behind the first page."""
    for case, heads, context in (("attend-4k", s.heads, s.context), ("attend-8k", s.few_heads, 2 * s.context)):
        listener.progress(f"{case}: one token over {context:,}")
        flops = 2.0 * heads * (context - PAGE_TOKENS) * (2 * s.rank + s.rope)
        long, short = (attention_program(workers, s, heads, 1, n - 1) for n in (context, PAGE_TOKENS))
        yield _row(case, flops, workers, s, partial(_added_s, short, long))


def _added_s(short: Timed, long: Timed) -> float:
    """Of the least of a few runs each: whatever else the machine does only ever makes one longer.

    At least a tenth of the long one, where even the short ones were disturbed.
    """
    short_s, long_s = (min(timed.seconds() for _ in range(NUM_TRIALS)) for timed in (short, long))
    return max(long_s - short_s, 0.1 * long_s)


def attention_program(workers: Workers, s: Shapes, heads: int, num_tokens: int, start: int) -> Timed:
    """`num_tokens` after `start` cached ones."""
    program = KernelProgram(workers, num_tokens)
    q, out = program.input(heads * (s.nope + s.rope)), program.rows(heads * s.value)
    pages = -(-(start + num_tokens) // PAGE_TOKENS)
    cache = aligned(np.random.default_rng(0).standard_normal((pages, PAGE_TOKENS, s.rank + s.rope), np.float32))
    kv_b = codes(heads * (s.nope + s.value), s.rank)
    shape = native.MlaShape(heads, s.nope, s.rope, s.value, s.rank, (s.nope + s.rope) ** -0.5)
    program.recorded.mla_attention(q, cache, kv_b, scales(*kv_b.shape), shape, out)
    return program.ready(start)


def _gemm_rows(workers: Workers, s: Shapes, listener: Listener) -> Iterator[Row]:
    """Many tokens through FP8 matrices."""
    for num_tokens in s.gemm_tokens:
        case = f"gemm-{num_tokens}"
        listener.progress(f"{case}: {num_tokens} tokens, FP8")
        program = KernelProgram(workers, num_tokens)
        matrices = codes(max(1, 384 // num_tokens), s.inter, s.hidden)
        x, y, scale = program.input(s.hidden), program.rows(s.inter), scales(s.inter, s.hidden)
        for matrix in matrices:
            program.recorded.linear(x, matrix, scale, y)
        yield _row(case, 2.0 * num_tokens * matrices.size, workers, s, program.ready().seconds)


def _row(case: str, flops: float, workers: Workers, s: Shapes, seconds: Callable[[], float]) -> Row:
    value, peak, ratio = in_turn(lambda _: flops / seconds(), lambda _: fma_peak(workers), s.num_pairs)
    return Row("kernels", case, "gflop_s", value / 1e9, "GFLOP/s", peak / 1e9, ratio, workers.target, AGAINST)

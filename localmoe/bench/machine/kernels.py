"""What the kernels reach on this machine's cores: matrices by the tokens that share them, and attention."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from localmoe.bench.arithmetic import attention_program
from localmoe.bench.kernel_program import KernelProgram, Timed, Workers, codes, scales
from localmoe.bench.machine.network import FEW_WORKERS, LARGE, MOST_LAYERS, TINY, Bytes, Network, fitting, recorded
from localmoe.bench.shapes import V3, Shapes

FP8_TOKENS = (1, 2, 4, 8, 16, 48, 256)
BF16_TOKENS = (1, 8, 16, 48, 256)
FEW_TOKENS = 8  # with more, arithmetic is the limit, and one layer is enough
CHUNK = 256  # tokens with which activations are measured
TIMED_S = 0.12  # a case is repeated until so much is spent,
LEAST_RUNS, MOST_RUNS = 4, 15  # but at least and at most so often
CONTEXTS = (512, 8704)  # between which one token's attention is measured
PROMPT_START, PROMPT_TOKENS = 1536, 512


def gemv_share(workers: Workers, table: Bytes, read: Callable[[], float]) -> float:
    """A BF16 GEMV's bytes/s over the streaming read's, in turn; the table holds BF16."""
    rows, cols = V3.inter, V3.hidden
    while 2 * rows * cols > table.size:
        rows //= 2
    program = KernelProgram(workers, 1)
    x, y, size = program.input(cols), program.rows(rows), 2 * rows * cols
    count = table.size // size
    for n in range(count):
        program.recorded.linear(x, table[n * size : (n + 1) * size].view(np.uint16).reshape(rows, cols), None, y)
    timed = program.ready()
    timed.seconds()
    return median(count * size / timed.seconds() / read() for _ in range(LEAST_RUNS + 2))


def gemm_flop_s(workers: Workers, num_tokens: int) -> float:
    """FLOP/s of one FP8 matrix of V3's shape times many tokens."""
    program = KernelProgram(workers, num_tokens)
    x, y = program.input(V3.hidden), program.rows(V3.inter)
    program.recorded.linear(x, codes(V3.inter, V3.hidden), scales(V3.inter, V3.hidden), y)
    return 2.0 * num_tokens * V3.inter * V3.hidden / typical(program.ready().seconds)


def layer_s(workers: Workers, table: Bytes) -> float:
    """Seconds that a layer takes for one token, however small it is: stages, barriers, hand-overs."""
    return typical(recorded(workers, table, TINY, 1)) / TINY.num_layers


def activation_bytes_s(workers: Workers, table: Bytes, gemm: float, attention: float) -> float | None:
    """Bytes/s of what ops pass on to each other, from layers so small that their matrices take little.

    `gemm` and `attention` in FLOP/s explain those. None where they explain all.
    """
    measured_s = typical(recorded(workers, table, TINY, CHUNK)) / TINY.num_layers
    left_s = measured_s - 2.0 * CHUNK * TINY.count / gemm - TINY.prompt_flops(CHUNK) / attention
    return CHUNK * TINY.activation_bytes / left_s if left_s > 0 else None


def matmul_flop_s(
    workers: Workers, table: Bytes, num_tokens: int, other_s: Callable[[Network, int], float], *, is_bf16: bool
) -> float | None:
    """FLOP/s of all matrices of a network whose experts see `num_tokens` each. None where the table is too small.

    `other_s` says what a layer takes beside them. With one token kv_b counts too: it is multiplied as it is.
    """
    net = _network(workers, table, num_tokens, is_bf16)
    if net is None:
        return None
    count = net.count + (net.kv_b_count if num_tokens == 1 else 0)
    measured_s = typical(recorded(workers, table, net, num_tokens)) / net.num_layers
    return 2.0 * num_tokens * count / max(measured_s - other_s(net, num_tokens), 0.5 * measured_s)


def _network(workers: Workers, table: Bytes, num_tokens: int, is_bf16: bool) -> Network | None:
    """Many workers are fed by a model that is made for them: V3's shape in FP8, where the table holds it."""
    most_layers = MOST_LAYERS if num_tokens <= FEW_TOKENS else 1
    if not is_bf16 and workers.pool.num_workers > FEW_WORKERS and LARGE.layer_bytes * 2 <= table.size:
        return fitting(LARGE, table, most_layers)
    return fitting(Network(is_bf16=is_bf16), table, most_layers)


def prompt_attention_flop_s(workers: Workers, s: Shapes = V3) -> float:
    """FLOP/s of a chunk's attention to itself and to those before it, counted as causal prompts need it."""
    heads, end = num_heads(workers, s), PROMPT_START + PROMPT_TOKENS
    keys_read = PROMPT_TOKENS * PROMPT_START + PROMPT_TOKENS * (PROMPT_TOKENS + 1) // 2
    flops = 2.0 * heads * (keys_read * (s.nope + s.rope + s.value) + end * s.rank * (s.nope + s.value))
    return flops / typical(attention_program(workers, s, heads, PROMPT_TOKENS, PROMPT_START).seconds)


def token_attention(workers: Workers, evict: Callable[[], object], s: Shapes = V3) -> tuple[float, float | None]:
    """What each token of context adds to one token's attention: FLOP/s, and bytes/s of latents beside that.

    The first with latents in the caches, the second from what it takes longer after `evict` has emptied them; None
    where it does not.
    """
    heads = num_heads(workers, s)
    timed = [attention_program(workers, s, heads, 1, context) for context in CONTEXTS]

    def cold(one: Timed) -> float:
        evict()
        return one.seconds()

    added = CONTEXTS[1] - CONTEXTS[0]
    warm_s = _difference([typical(one.seconds) for one in timed])
    cold_s = _difference([typical(lambda one=one: cold(one)) for one in timed])  # type: ignore[misc]
    flops, num_bytes = 2.0 * heads * (2 * s.rank + s.rope) * added, 4.0 * (s.rank + s.rope) * added
    return flops / warm_s, num_bytes / (cold_s - warm_s) if cold_s > 1.05 * warm_s else None


def num_heads(workers: Workers, s: Shapes) -> int:
    """Enough for all workers."""
    return min(s.heads, max(s.few_heads, 2 * int(workers.pool.num_workers)))


def typical(seconds: Callable[[], float]) -> float:
    """The lower quartile of a few runs: other programs only ever make a run longer. One before them warms up."""
    seconds()
    runs = [seconds() for _ in range(LEAST_RUNS)]
    end_s = time.monotonic() + max(0.0, TIMED_S - sum(runs))
    while len(runs) < MOST_RUNS and time.monotonic() < end_s:
        runs.append(seconds())
    return max(sorted(runs)[len(runs) // 4], 1e-9)


def _difference(pair: list[float]) -> float:
    return max(pair[1] - pair[0], 1e-9)

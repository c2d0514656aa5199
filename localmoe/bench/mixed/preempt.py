"""How long urgent tiles wait at DeepSeek-V3's shapes while a prompt of 2K tokens is read without a pause."""

import threading
import time
from collections.abc import Iterator

import numpy as np

from localmoe import _native as native
from localmoe.bench.arithmetic import attention_program
from localmoe.bench.kernel_program import KernelProgram, Timed, Workers
from localmoe.bench.rows import Listener, Row
from localmoe.bench.shapes import V3, Shapes
from localmoe.bench.table import ExpertTable, nbytes_of
from localmoe.hardware import available_memory

PROMPT_TOKENS = 2048
SECONDS = 10.0
SPARE_BYTES = 1 << 30  # scratch of a chunk beside the table


def measure(workers: Workers, listener: Listener, shapes: Shapes = V3, seconds: float = SECONDS) -> Iterator[Row]:
    """Row preempt-p99: at most 1 beside the longest bulk tile of the same run."""
    needed = nbytes_of(shapes) + SPARE_BYTES
    if shapes == V3 and available_memory() < needed:
        listener.warn(f"preempt-p99 is left out: it takes {needed / 1e9:.1f} GB of memory")
        return
    listener.progress("preempt-p99: V3's layers, one token beside a prompt of 2K tokens")
    table = ExpertTable(shapes, listener)
    counters = _run(workers, _layer(workers, shapes, table, 1), _prompt(workers, shapes, table), seconds)
    longest_us = max(counters.longest_tile_us[1], counters.longest_begin_us[1])
    for name, value in (("p50", counters.wait_p50_us), ("p99", counters.wait_p99_us), ("max", counters.wait_max_us)):
        ratio, against = value / longest_us, "the longest bulk tile of that run"
        yield Row("mixed", f"preempt-{name}", "us", value, "us", longest_us, ratio, workers.target, against)


def _prompt(workers: Workers, s: Shapes, table: ExpertTable) -> list[Timed]:
    """The layer of each chunk of a prompt, and its attention."""
    heads = max(s.few_heads, 2 * workers.pool.num_workers)
    starts = range(0, max(s.chunk, PROMPT_TOKENS * s.chunk // V3.chunk), s.chunk)
    layer = _layer(workers, s, table, s.chunk)
    return [t for start in starts for t in (attention_program(workers, s, heads, s.chunk, start), layer)]


def _layer(workers: Workers, s: Shapes, table: ExpertTable, num_tokens: int) -> Timed:
    """A linear, the router and the routed experts."""
    program = KernelProgram(workers, num_tokens)
    x = program.input(s.hidden)
    matrix = next(iter(table.matrices(s.inter, s.hidden)))
    scale = np.full((-(-s.inter // 128), -(-s.hidden // 128)), 1e-4, np.float32)
    program.recorded.linear(x, matrix, scale, program.rows(s.inter))
    logits, weights = program.input(len(table.experts)), program.rows(s.top_k)
    router = native.RouterShape(len(table.experts), s.top_k, 1, 1, True, True, True, 2.5)
    layer = program.recorded.route(logits, router, None, weights)
    part = native.ExpertPart(table.experts, *table.placements())
    program.recorded.experts(x, layer, weights, [part], program.rows(s.hidden))
    return program.ready()


def _run(workers: Workers, token: Timed, prompt: list[Timed], seconds: float) -> native.PoolCounters:
    """Steps of one token beside the prompt, read again and again, for so long."""
    cancel = native.Flag()

    def read() -> None:
        while all(part.run(urgent=False, cancel=cancel) for part in prompt):
            pass

    for part in (token, *prompt[:2]):
        part.run()
    reader = threading.Thread(target=read)
    reader.start()
    workers.pool.reset_counters()
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            token.run()
    finally:
        counters = workers.pool.counters()
        cancel.set()
        reader.join()
    return counters

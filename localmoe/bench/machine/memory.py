"""The memory that everything is measured on, and how fast it is read: by all workers, and by each NUMA node's own."""

from statistics import median

import numpy as np

from localmoe import _native as native
from localmoe.bench.kernel_program import Workers, bytes_of
from localmoe.bench.machine.network import FEW_WORKERS, LARGE, Bytes
from localmoe.bench.rows import Listener
from localmoe.bench.shard import normal_codes
from localmoe.engine.reading import weight_memory, weight_memory_on
from localmoe.hardware import Machine
from localmoe.hardware.placement import cpus_of_cores, nodes_of

BEYOND_CACHES = 2  # times the outermost caches' size: then little of it is found there again
LEAST_BYTES, MOST_BYTES = 256 << 20, 4 << 30
LARGE_BYTES = 2 * LARGE.layer_bytes  # at least, where there are many cores
SMALL_BYTES = 32 << 20  # with less than this nothing can be said of memory
FREE_SHARE = 1 / 4  # of the memory that is available
PIECE_BYTES = 1 << 22  # drawn; they come again and again
NUM_ROUNDS = 3  # of all variants of the streaming read, to find the fastest
NUM_READS = 5


def table_bytes(machine: Machine, available_bytes: int, listener: Listener) -> int:
    """How large the table is to be: more than the caches hold, but within what is free. 0 where there is no room."""
    caches = machine.cpu.caches
    outermost = max((cache.level for cache in caches), default=0)
    cached = sum(cache.size_bytes * cache.num for cache in caches if cache.level == outermost)
    least = LARGE_BYTES if machine.limits.usable_cores > FEW_WORKERS else LEAST_BYTES
    wanted = min(MOST_BYTES, max(least, BEYOND_CACHES * cached))
    found = min(wanted, int(available_bytes * FREE_SHARE)) if available_bytes else LEAST_BYTES
    if found < SMALL_BYTES:
        listener.warn(f"memory and kernels are not measured: only {available_bytes / 1e6:,.0f} MB of memory are free")
        return 0
    if found < cached:
        listener.warn(f"memory is measured on {found / 1e6:,.0f} MB, which caches may hold: rates may be too high")
    return found >> 12 << 12


def new_table(num_bytes: int) -> Bytes:
    """[num_bytes] FP8 codes of normal numbers, on large pages and on all NUMA nodes, as weights lie."""
    table = weight_memory(num_bytes)
    fill(table, normal_codes(np.random.default_rng(1), min(num_bytes, PIECE_BYTES)))
    return table


def fill_with_bf16(table: Bytes) -> None:
    """BF16 numbers in place of the FP8 codes."""
    values = np.random.default_rng(2).standard_normal(min(table.size, PIECE_BYTES) // 2, np.float32) * np.float32(0.02)
    fill(table, bytes_of((values.view(np.uint32) >> 16).astype(np.uint16)))


def fill(table: Bytes, piece: Bytes) -> None:
    """Repeats `piece`."""
    for start in range(0, table.size, piece.size):
        part = table[start : start + piece.size]
        part[:] = piece[: part.size]


class StreamingRead:
    """Reads a table by the native reader that is the quickest here and now."""

    def __init__(self, workers: Workers, table: Bytes) -> None:
        self._workers = workers
        self._table = table.reshape(1, -1)
        names = native.reader_names(workers.target)
        rounds = [[self._rate(variant) for variant in range(len(names))] for _ in range(NUM_ROUNDS)]
        self._best = int(np.argmax([median(rates) for rates in zip(*rounds, strict=True)]))
        self.name = names[self._best]

    def rate(self) -> float:
        """Bytes/s of one pass. Afterwards the caches hold the table's end."""
        return self._rate(self._best)

    def typical_rate(self) -> float:
        """The upper quartile of a few passes: other programs only ever make one slower."""
        return sorted(self.rate() for _ in range(NUM_READS))[-1 - NUM_READS // 4]

    def _rate(self, variant: int) -> float:
        seconds = native.read_seconds(self._workers.pool, self._table, [0], variant, self._workers.target)
        return self._table.size / max(float(seconds), 1e-9)


def node_rates(workers: Workers, table_size: int, listener: Listener) -> tuple[tuple[int, float], ...]:
    """Bytes/s at which the cores of each NUMA node read that node's memory; empty where there is one node."""
    cpus = cpus_of_cores()
    by_node: dict[int, list[int]] = {}
    for cpu, node in zip(cpus, nodes_of(cpus), strict=True):
        if node is not None:
            by_node.setdefault(node, []).append(cpu)
    if len(by_node) < 2:
        return ()
    found = []
    for node, own in sorted(by_node.items()):
        listener.progress(f"memory of node {node}, read by its {len(own)} cores")
        table = weight_memory_on(node, table_size // len(by_node) >> 12 << 12)
        fill(table, normal_codes(np.random.default_rng(1), PIECE_BYTES))
        read = StreamingRead(Workers(native.Pool(own), workers.target), table)
        found.append((node, read.typical_rate()))
    return tuple(found)

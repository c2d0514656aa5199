"""Kernels that memory limits, beside the fastest streaming read of the same bytes by the same threads."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.bench.kernel_program import KernelProgram, Workers, scales
from localmoe.bench.pairs import in_turn
from localmoe.bench.rows import Listener, Row
from localmoe.bench.shapes import Shapes
from localmoe.bench.table import ExpertTable

NUM_TRIALS = 3  # of each streaming-read variant


class Bandwidth:
    """Measures rows on a table."""

    def __init__(self, workers: Workers, shapes: Shapes, table: ExpertTable, listener: Listener) -> None:
        self._workers = workers
        self._shapes = shapes
        self._table = table
        self._listener = listener

    def fp8_rows(self) -> Iterator[Row]:
        """GEMVs and mixtures, odd shapes among them."""
        s = self._shapes
        yield self._gemv("gemv", s.inter, s.hidden)
        for rows, cols in s.odd_matrices:
            yield self._gemv(f"gemv-{cols}", rows, cols)
        yield self._gemv("gemv-odd-rows", s.odd_rows, s.hidden)
        for num_tokens in s.moe_tokens:
            yield self._moe(f"moe-{num_tokens}", num_tokens)
        yield self._moe(f"moe-{max(s.moe_tokens)}-same", max(s.moe_tokens), all_same=True)

    def bf16_rows(self) -> Iterator[Row]:
        """One of each on a BF16 table."""
        yield self._gemv("gemv-bf16", self._shapes.inter, self._shapes.hidden)
        yield self._moe("moe-1-bf16", 1)

    def _gemv(self, case: str, rows: int, cols: int) -> Row:
        """One token through matrices that lie one after the other, each of them used once."""
        self._listener.progress(f"{case}: one token, {rows:,} x {cols:,}")
        program = KernelProgram(self._workers, 1)
        x, y = program.input(cols), program.rows(rows)
        scale = None if self._table.is_bf16 else scales(rows, cols)
        num_bytes = 0
        for matrix in self._table.matrices(rows, cols):
            program.recorded.linear(x, matrix, scale, y)
            num_bytes += matrix.nbytes
        timed = program.ready()
        data = self._table.flat[:num_bytes].reshape(1, -1)
        name, read = self._fastest(lambda variant: self._read_rate(data, [0], variant))
        return self._row(case, lambda _: num_bytes / timed.seconds(), lambda _: read(), name)

    def _moe(self, case: str, num_tokens: int, *, all_same: bool = False) -> Row:
        """The routed experts of a layer. Each token chooses its own at random, and others in each run.

        What counts is the bytes of the distinct experts used. Before either side begins, all other experts are read,
        so that the caches hold none of these.
        """
        s, experts = self._shapes, self._table.experts
        self._listener.progress(f"{case}: {s.top_k} of {len(experts)} experts for each of {num_tokens} tokens")
        program = KernelProgram(self._workers, num_tokens)
        x, logits, weights = program.input(s.hidden), program.input(len(experts)), program.rows(s.top_k)
        router = native.RouterShape(len(experts), s.top_k, 1, 1, True, True, True, 2.5)
        layer = program.recorded.route(logits, router, None, weights)
        part = native.ExpertPart(experts, *self._table.placements())
        program.recorded.experts(x, layer, weights, [part], program.rows(s.hidden))
        timed = program.ready()
        chosen = [choose(s.top_k, len(experts), num_tokens, turn, all_same) for turn in range(s.num_pairs + 1)]
        used = [np.unique(ids).tolist() for ids in chosen]

        def rate(turn: int) -> float:
            self._evict(used[turn])
            return len(used[turn]) * experts.shape[1] / timed.seconds(chosen[turn])

        def read_rate(variant: int, turn: int = 0) -> float:
            self._evict(used[turn])
            return self._read_rate(experts, used[turn], variant)

        name, read = self._fastest(read_rate)
        return self._row(case, rate, read, name)

    def _evict(self, used: Sequence[int]) -> None:
        others = sorted({*range(len(self._table.experts))} - {*used})
        self._read_rate(self._table.experts, others, 0)

    def _fastest(self, rate: Callable[..., float]) -> tuple[str, Callable[..., float]]:
        """Name and reader of the streaming-read variant that is the quickest here and now on this kind of access."""
        names = native.reader_names(self._workers.target)
        rounds = [[rate(variant) for variant in range(len(names))] for _ in range(NUM_TRIALS)]
        best = int(np.argmax([median(rates) for rates in zip(*rounds, strict=True)]))
        return names[best], lambda *turn: rate(best, *turn)

    def _read_rate(self, data: NDArray[np.uint8], rows: Sequence[int], variant: int) -> float:
        """Bytes per second."""
        seconds = native.read_seconds(self._workers.pool, data, list(rows), variant, self._workers.target)
        return len(rows) * data.shape[1] / float(seconds)

    def _row(self, case: str, ours: Callable[[int], float], read: Callable[[int], float], name: str) -> Row:
        value, reference, ratio = in_turn(ours, read, self._shapes.num_pairs)
        target, against = self._workers.target, f"streaming read ({name})"
        return Row("kernels", case, "gb_s", value / 1e9, "GB/s", reference / 1e9, ratio, target, against)


def choose(top_k: int, num_experts: int, num_tokens: int, turn: int, all_same: bool) -> NDArray[np.int32]:
    """[1, tokens, K] experts, drawn for this turn."""
    random = np.random.default_rng((turn, num_tokens))
    draws = [random.permutation(num_experts)[:top_k] for _ in range(1 if all_same else num_tokens)]
    return np.ascontiguousarray(np.broadcast_to(draws, (1, num_tokens, top_k)), np.int32)

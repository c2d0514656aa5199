"""The CPU dialect: records the ops as a step program for the native core, then runs it by one call."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.errors import CancelledError
from localmoe.kernels.ops import (
    NOT_COMPUTED,
    PAGE_TOKENS,
    CancelFlag,
    Experts,
    LayerCache,
    Linear,
    MlaShape,
    Rope,
    Router,
    Routing,
    Segment,
)
from localmoe.kernels.recording import Recording, Value, arena_floats, native_parts, plan_buffers, record

__all__ = ["CpuOps", "CpuProgram", "Value", "plan_buffers"]


class _Pages:
    """A page table of ops.PageTable for programs that have no cache."""

    def __init__(self, count: int) -> None:
        self.pages = np.zeros(count, np.int32)


class CpuOps(Recording):
    """Ops[Value]: nothing is computed, every op is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.routed_selected: list[bool] = []  # of each routed layer: whether it sees selected rows only
        self.top_k = 0

    def input(self, data: NDArray[np.float32]) -> Value:
        """The rows of `data` [max tokens, D]: for tests and self-tests of single ops."""
        out = self._new(data.shape[1])
        self._call("input", data, out)
        return out

    def embedding(self, table: Linear) -> Value:
        out = self._new(table.weight.shape[1])
        self._call("embedding", table.weight, out)
        return out

    def rms_norm(self, x: Value, weight: NDArray[np.float32], eps: float) -> Value:
        out = self._new(x.width, x.selected)
        self._call("rms_norm", x, weight, eps, out)
        return out

    def linear(self, x: Value, w: Linear) -> Value:
        out = self._new(w.weight.shape[0], x.selected)
        self._call("linear", x, w.weight, w.scale, out)
        return out

    def add(self, x: Value, y: Value) -> Value:
        self._call("add", x, y, x)
        return x

    def silu_mul(self, gate: Value, up: Value) -> Value:
        self._call("silu_mul", gate, up, gate)
        return gate

    def columns(self, x: Value, start: int, stop: int) -> Value:
        assert 0 <= start < stop <= x.width, "no such columns"
        return replace(x, start=x.start + start, width=stop - start)

    def rope(self, x: Value, rope: Rope, head_dim: int) -> Value:
        self._call("rope", x, rope.inv_freq, rope.scale, rope.interleaved, head_dim)
        return x

    def append_latent(self, cache: LayerCache, latent: Value, key: Value) -> None:
        self._call("append_latent", cache.data, latent, key)

    def mla_attention(self, q: Value, cache: LayerCache, kv_b: Linear, shape: MlaShape) -> Value:
        out = self._new(shape.num_heads * shape.v_dim)
        s = native.MlaShape(
            shape.num_heads, shape.nope_dim, shape.rope_dim, shape.v_dim, shape.rank, shape.softmax_scale
        )
        self._call("mla_attention", q, cache.data, kv_b.weight, kv_b.scale, s, out)
        return out

    def route(self, logits: Value, router: Router) -> Routing[Value]:
        weights = self._new(router.top_k, logits.selected)
        shape = native.RouterShape(
            router.num_experts,
            router.top_k,
            router.num_groups,
            router.top_groups,
            router.scoring == "sigmoid",
            router.group_score == "top2",
            router.normalize,
            router.scale,
        )
        ids = replace(weights, buffer=len(self.routed_selected))  # a routed layer's number in place of a buffer's
        self.routed_selected.append(logits.selected)
        self.top_k = router.top_k
        self._call("route", logits, shape, router.bias, weights)
        return Routing(ids, weights)

    def experts(self, x: Value, routing: Routing[Value], experts: Experts) -> Value:
        assert all(len(p.blob) for p in experts.parts), "the experts do not rest in memory"
        out = self._new(x.width, x.selected)
        self._call("experts", x, routing.ids.buffer, routing.weights, native_parts(experts), out)
        return out

    def select(self, x: Value) -> Value:
        out = self._new(x.width, selected=True)
        self._call("select", x, out)
        return out


class CpuProgram:
    """ops.Program: `network` recorded for up to `max_tokens` tokens on `pool`, for `target` (empty: the best).

    `worker_nodes` says on which of the nodes that experts are split over each worker is (-1: on none of them): workers
    take rows of their own node first. `early`: of runs that are not urgent, its own go before other programs'.
    """

    def __init__(
        self,
        network: Callable[[CpuOps], Value],
        max_tokens: int,
        pool: native.Pool,
        target: str = "",
        worker_nodes: Sequence[int] = (),
        *,
        early: bool = False,
    ) -> None:
        ops = CpuOps()
        output = network(ops)
        assert output == Value(output.buffer, 0, ops.widths[output.buffer], output.selected), "not a whole buffer"
        self.max_tokens = max_tokens
        self._vocab = output.width
        self._ops = ops
        self._pool = pool
        self._selected: NDArray[np.int64] = np.empty(0, np.int64)  # of the last run
        self._num_tokens = 0
        self._program, _ = record(ops, output, max_tokens, target)
        self._program.plan(arena_floats(ops, max_tokens), pool.num_workers, list(worker_nodes))
        if early:
            self._program.go_early()

    @property
    def target(self) -> str:
        """The instruction-set target whose kernels run."""
        return self._program.target

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return self._program.progress

    @property
    def nbytes(self) -> int:
        """Activations and scratch."""
        return self._program.nbytes

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, T, K]: the experts that the last run chose; NOT_COMPUTED where only selected rows were."""
        layers = self._ops.routed_selected
        if not layers:
            return None
        chosen = np.full((len(layers), self._num_tokens, self._ops.top_k), NOT_COMPUTED, np.int32)
        for n, selected in enumerate(layers):
            ids = np.asarray(self._program.routed(n), np.int32).reshape(-1, self._ops.top_k)
            rows = self._selected if selected else np.arange(self._num_tokens)
            chosen[n, rows] = ids[: len(rows)]
        return chosen

    def forward(
        self,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        urgent: bool = True,
        cancel: CancelFlag | None = None,
        all_logits: bool = False,
        forced_experts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """As ops.Program says."""
        assert all(s.start + s.count <= len(s.table.pages) * PAGE_TOKENS for s in segments), "no room in the pages"
        counts = np.asarray([s.count for s in segments], np.int32)
        starts = np.asarray([s.start for s in segments], np.int32)
        assert len(ids) == counts.sum() <= self.max_tokens, "tokens do not fit the segments"
        assert 0 <= ids.min() <= ids.max() < self._vocab, "no such token"
        self._num_tokens = len(ids)
        self._selected = np.arange(len(ids)) if all_logits else counts.cumsum() - 1
        logits = np.empty((len(self._selected), self._vocab), np.float32)
        tables = [s.table.pages for s in segments]
        table_starts = np.cumsum([0, *(len(t) for t in tables[:-1])], dtype=np.int32)
        complete = self._program.forward(
            self._pool,
            np.ascontiguousarray(ids, np.int32),
            starts,
            counts,
            np.concatenate(tables),
            table_starts,
            logits,
            all_logits,
            urgent,
            cancel,
            None if forced_experts is None else np.ascontiguousarray(forced_experts, np.int32),
        )
        if not complete:
            raise CancelledError("The run was cancelled.")
        return logits

    def apply(self, num_rows: int) -> NDArray[np.float32]:
        """[num_rows, D]: a network of single ops, without attention, over the first rows of its inputs."""
        ids = np.zeros(num_rows, np.int32)
        return self.forward(ids, [Segment(_Pages(-(-num_rows // PAGE_TOKENS)), 0, num_rows)], all_logits=True)

"""Step programs that run piece by piece: a network whose routed experts come in groups, or from other devices.

    ops = SegmentOps()
    program = SegmentProgram(ops, decode(ops, model, cache), max_tokens, pool)
    program.begin(run)
    program.run(0, ops.stops[0].op)              # up to the first layer's routing
    program.run_group(ops.stops[0], group)       # as often as there are groups
    program.run(ops.stops[0].op + 1, ...)        # from the sum of its experts on

Each op is one call of the recording, so a call's number is its op's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.errors import CancelledError
from localmoe.kernels.cpu import CpuOps
from localmoe.kernels.ops import CancelFlag, Experts, LayerCache, Routing, Segment
from localmoe.kernels.recording import Value, arena_floats, native_parts, native_rows, record

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Stop:
    """Where the program is left: at op `op`, which is a group of experts, or behind it.

    latents: the new rows of the latent cache are written. experts: the op runs once for each group of `experts`.
    exchange: others read the rows of `x` and fill those of `out`. `layer` counts attention for latents, and layers
    with routed experts else.
    """

    kind: Literal["latents", "experts", "exchange"]
    op: int
    layer: int
    x: Value | None = None
    out: Value | None = None


@dataclass(frozen=True)
class Group:
    """Experts [first, first + count) of a layer; of each part their bytes."""

    first: int
    count: int
    data: Sequence[Bytes]
    overwrites: bool  # the layer's first group: what the rows held does not count


@dataclass(frozen=True)
class Tokens:
    """What one run is about, as ops.Program.forward takes it. `selected` are the tokens whose logits are asked for."""

    ids: NDArray[np.int32]
    segments: Sequence[Segment]
    selected: NDArray[np.int32]
    forced_experts: NDArray[np.int32] | None = None

    @classmethod
    def of_run(
        cls,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        all_logits: bool,
        forced_experts: NDArray[np.int32] | None,
        most: int,
        vocab: int,
    ) -> "Tokens":
        """Checked: at most `most` tokens, as many as the segments have, each of the vocabulary's."""
        counts = np.asarray([s.count for s in segments], np.int32)
        assert len(ids) == counts.sum() <= most, "tokens do not fit the segments"
        assert 0 <= ids.min() <= ids.max() < vocab, "no such token"
        selected = np.arange(len(ids), dtype=np.int32) if all_logits else counts.cumsum(dtype=np.int32) - 1
        forced = None if forced_experts is None else np.ascontiguousarray(forced_experts, np.int32)
        return cls(ids, segments, selected, forced)

    @property
    def num_rows(self) -> int:
        return len(self.ids)


class SegmentOps(CpuOps):
    """CpuOps that notes where a run may stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[Stop] = []

    def append_latent(self, cache: LayerCache, latent: Value, key: Value) -> None:
        super().append_latent(cache, latent, key)
        self._stop("latents")

    def experts(self, x: Value, routing: Routing[Value], experts: Experts) -> Value:
        out = self._new(x.width, x.selected)
        parts = native_parts(experts)
        self._call("expert_group", x, routing.ids.buffer, routing.weights, parts, experts.num_experts, out)
        self._stop("experts", x, out)
        return out

    def given(self, width: int, selected: bool = False) -> Value:
        """[T, width]: rows that others fill before the run goes on."""
        out = self._new(width, selected)
        self._call("hold", out, out)
        return out

    def exchanged(self, x: Value) -> Value:
        """[T, H]: rows that others make of `x` while the run stops here."""
        out = self._new(x.width, x.selected)
        self._call("hold", x, out)
        self._stop("exchange", x, out)
        return out

    def _stop(self, kind: Literal["latents", "experts", "exchange"], *values: Value) -> None:
        layer = sum(stop.kind == kind for stop in self.stops)
        self.stops.append(Stop(kind, len(self.calls) - 1, layer, *values))


@dataclass
class SegmentProgram:
    """A recorded network on `pool`, for up to `max_tokens` tokens. `output` is its logits; None: it has none."""

    ops: SegmentOps
    output: Value | None
    max_tokens: int
    pool: native.Pool
    target: str = ""
    worker_nodes: Sequence[int] = ()
    _tokens: Tokens | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._program, self._offsets = record(self.ops, self.output, self.max_tokens, self.target)
        floats = arena_floats(self.ops, self.max_tokens)
        self._program.plan(floats, self.pool.num_workers, list(self.worker_nodes))
        self.logits = np.empty((0, self.output.width if self.output else 0), np.float32)

    @property
    def num_ops(self) -> int:
        """Ops, or calls of the recording."""
        return len(self.ops.calls)

    @property
    def nbytes(self) -> int:
        """Activations and scratch."""
        return int(self._program.nbytes)

    @property
    def progress(self) -> float:
        """The share of the ops that are done, from any thread."""
        return float(self._program.progress)

    def begin(self, tokens: Tokens, cancel: CancelFlag | None, *, urgent: bool = False) -> None:
        """The runs that follow are about `tokens`; `logits` [S, vocab] is filled by the last of them."""
        self._tokens = tokens
        self._cancel = cancel
        self._urgent = urgent
        self.logits = np.empty((len(tokens.selected), self.logits.shape[1]), np.float32)
        tables = [s.table.pages for s in tokens.segments] or [np.zeros(1, np.int32)]
        self._args = (
            np.ascontiguousarray(tokens.ids, np.int32),
            np.asarray([s.start for s in tokens.segments], np.int32),
            np.asarray([s.count for s in tokens.segments], np.int32),
            np.concatenate(tables),
            np.cumsum([0, *(len(t) for t in tables[:-1])], dtype=np.int32),
            np.ascontiguousarray(tokens.selected, np.int32),
        )

    def run(self, first: int, end: int, group: Group | None = None) -> None:
        """Ops [first, end). CancelledError when the flag was set."""
        if first == end:
            return
        assert self._tokens is not None, "no run has begun"
        window = None
        if group is not None:
            window = native.ExpertGroup(group.first, group.count, list(group.data), group.overwrites)
        forced = self._tokens.forced_experts
        complete = self._program.run(
            self.pool, first, end, *self._args, self.logits, self._urgent, self._cancel, forced, window
        )
        if not complete:
            raise CancelledError("The run was cancelled.")

    def run_group(self, stop: Stop, group: Group) -> None:
        """One group of the experts at `stop`, added to what the groups before have left."""
        self.run(stop.op, stop.op + 1, group)

    def rows(self, value: Value, count: int) -> NDArray[np.float32]:
        """[count, width]: a view of the value's rows."""
        view: NDArray[np.float32] = self._program.view(native_rows(value, self.ops, self._offsets, self.output), count)
        return view

    def chosen(self, layer: int) -> NDArray[np.int32]:
        """[rows, K]: the experts that the last run chose in a layer with routed experts."""
        ids = np.asarray(self._program.routed(layer), np.int32).reshape(self.max_tokens, -1)
        return ids

"""Step programs that run piece by piece: a network whose routed experts come in groups, or from other devices.

    ops = SegmentOps()
    program = SegmentProgram(ops, decode(ops, model, cache), max_tokens, pool)
    program.begin(run)
    program.run(0, ops.stops[0].op)              # up to the first layer's routing
    program.run_group(ops.stops[0], group)       # as often as there are groups
    program.run(ops.stops[0].op + 1, ...)        # from the sum of its experts on

Each op is one call of the recording, so a call's number is its op's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.errors import CancelledError
from localmoe.kernels.cpu import CpuOps
from localmoe.kernels.ops import CancelFlag, Experts, LayerCache, Routing, Segment
from localmoe.kernels.recording import Value, arena_floats, native_parts, native_rows, record

Bytes = NDArray[np.uint8]
StopKind = Literal["latents", "given", "experts", "offer", "exchange"]
Signal = tuple[NDArray[np.int32], int]  # a word that native code and others see, and a value of it


@dataclass(frozen=True)
class Stop:
    """Where the program is left: at op `op`, which is a group of experts, or behind it.

    latents: the new rows of the latent cache are written. given: others have filled the rows of `x`. experts: the op
    runs once for each group of experts, which were chosen with `weights`. offer: the rows of `x` are there, and stay
    until the layer's exchange. exchange: others have read them and have filled the rows of `out`. `layer` counts
    attention for latents, and layers with routed experts else.
    """

    kind: StopKind
    op: int
    layer: int
    x: Value | None = None
    out: Value | None = None
    weights: Value | None = None
    part: Value | None = None  # like `out`: room for what another device adds to it, where memory is not common


@dataclass(frozen=True)
class Group:
    """Experts [first, first + count) of a layer, or those that have a place (first is 0).

    `data` has of each part their bytes, in the memory of the program's device, one expert after the other; or of each
    part each expert's, which may lie apart (on host devices).
    """

    first: int
    count: int
    data: Sequence[Any]
    overwrites: bool  # the layer's first group: what the rows held does not count
    places: NDArray[np.int32] | None = None  # [E]: of each expert its number among `count` in the data; -1: not there
    stays: bool = False  # the same object comes again, with the same bytes: a device may note what it launched

    def native(self) -> native.ExpertGroup:
        """As native programs take it."""
        return native.ExpertGroup(self.first, self.count, list(self.data), self.overwrites, self.places)


def turn(
    first: int, end: int, group: Group | None = None, waits: Signal | None = None, tells: Signal | None = None
) -> native.Turn:
    """Ops [first, end) for SegmentProgram.take_turns, run once `waits` has come; then others are told."""
    signals = (None if signal is None else native.Signal(*signal) for signal in (waits, tells))
    return native.Turn(first, end, group.native() if group else None, *signals)


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
    """CpuOps that notes where a run may stop. `takes_bf16`: rows that others give are BF16, two to a float.

    `keeps_sums`: others still read a layer's sum of experts while rows of the next layer are given.
    """

    def __init__(self, *, takes_bf16: bool = False, keeps_sums: bool = False) -> None:
        super().__init__()
        self.stops: list[Stop] = []
        self._takes_bf16 = takes_bf16
        self._keeps_sums = keeps_sums
        self._sum: Value | None = None  # of the last experts

    def append_latent(self, cache: LayerCache, latent: Value, key: Value) -> None:
        super().append_latent(cache, latent, key)
        self._stop("latents")

    def experts(self, x: Value, routing: Routing[Value], experts: Experts) -> Value:
        out = self._new(x.width, x.selected)
        parts = native_parts(experts)
        self._call("expert_group", x, routing.ids.buffer, routing.weights, parts, experts.num_experts, out)
        self._stop("experts", x, out, routing.weights)
        self._sum = out
        return out

    def given(self, width: int, selected: bool = False) -> Value:
        """[T, width]: rows that others fill before the run goes on."""
        if self._takes_bf16:
            assert width % 2 == 0, "rows of BF16 have an even number of columns"
            rows = self._new(width // 2, selected)
            out = self._new(width, selected)
            self._call("widen", rows, out)
        else:
            rows = out = self._new(width, selected)
            self._call("hold", out, out)
        self._stop("given", rows)
        if self._keeps_sums and self._sum is not None:
            self._call("hold", self._sum, self._sum)
        return out

    def offered(self, x: Value) -> Callable[[], Value]:
        """Rows that others make of `x`, which they may read from here on. Called where [T, H] of theirs are due."""
        self._call("hold", x, x)
        self._stop("offer", x)
        return lambda: self._exchanged(x)

    def _exchanged(self, x: Value) -> Value:
        out = self._new(x.width, x.selected)
        self._call("hold", x, out)
        self._stop("exchange", x, out)
        return out

    def _stop(self, kind: StopKind, *values: Value) -> None:
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

    def go_early(self) -> None:
        """Its runs that are not urgent go before those of other programs."""
        self._program.go_early()

    @property
    def stops(self) -> Sequence[Stop]:
        """Where a run may be left, in order."""
        return self.ops.stops

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

    @property
    def memory(self) -> Bytes:
        """Where its values lie, for devices that copy from and to them."""
        arena: Bytes = self._program.arena
        return arena

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
        window = None if group is None else group.native()
        forced = self._tokens.forced_experts
        complete = self._program.run(
            self.pool, first, end, *self._args, self.logits, self._urgent, self._cancel, forced, window
        )
        if not complete:
            raise CancelledError("The run was cancelled.")

    def run_group(self, stop: Stop, group: Group) -> None:
        """One group of the experts at `stop`, added to what the groups before have left."""
        self.run(stop.op, stop.op + 1, group)

    def take_turns(self, turns: Sequence[native.Turn], base: int) -> NDArray[np.float64]:
        """[turns, 2]: begin and end of each, in seconds of time.perf_counter(). Signals count from `base`.

        One native call: CancelledError when the flag was set.
        """
        assert self._tokens is not None, "no run has begun"
        times = np.zeros((len(turns), 2))
        forced = self._tokens.forced_experts
        complete = self._program.take_turns(
            self.pool, turns, base, *self._args, self.logits, self._urgent, self._cancel, forced, times
        )
        if not complete:
            raise CancelledError("The run was cancelled.")
        return times

    def routing(self, stop: Stop, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """[count, K] ids and [count, K] weights: views of what was chosen for the experts at `stop`."""
        assert stop.weights is not None
        return self.chosen(stop.layer)[:count], self.rows(stop.weights, count)

    def rows(self, value: Value, count: int) -> NDArray[np.float32]:
        """[count, width]: a view of the value's rows."""
        view: NDArray[np.float32] = self._program.view(native_rows(value, self.ops, self._offsets, self.output), count)
        return view

    def chosen(self, layer: int) -> NDArray[np.int32]:
        """[rows, K]: the experts that the last run chose in a layer with routed experts, a view."""
        ids: NDArray[np.int32] = self._program.routed(layer).reshape(self.max_tokens, -1)
        return ids

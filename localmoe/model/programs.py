"""What a device computes the network with, piece by piece: made by the dialect that the device understands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.kernels.ops import NOT_COMPUTED, CancelFlag, Ops
from localmoe.kernels.recording import Value
from localmoe.kernels.segments import Group, SegmentOps, SegmentProgram, Stop, Tokens
from localmoe.model.cache import Latents
from localmoe.model.decoder import Model, decode
from localmoe.model.experts import routed


class PieceProgram(Protocol):
    """A recorded network that runs from stop to stop, as kernels.segments describes it."""

    max_tokens: int

    @property
    def stops(self) -> Sequence[Stop]:
        """Where a run is left, in order."""
        ...

    @property
    def num_ops(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Activations and scratch."""
        ...

    @property
    def progress(self) -> float:
        """0 to 1 within the current run, from any thread."""
        ...

    @property
    def logits(self) -> NDArray[np.float32]:
        """[S, vocab], once the last op was run and its stream was waited for."""
        ...

    def begin(self, tokens: Tokens, cancel: CancelFlag | None, *, urgent: bool = False) -> None:
        """The runs that follow are about `tokens`."""
        ...

    def run(self, first: int, end: int, group: Group | None = None) -> None:
        """Ops [first, end), on the stream that it is launched on. CancelledError when the flag was set."""
        ...

    def run_group(self, stop: Stop, group: Group) -> None:
        """One group of the experts at `stop`, added to what the groups before have left."""
        ...

    def rows(self, value: Value, count: int) -> Any:
        """[count, width]: a view of the value's rows in the device's memory, as its streams' peer_copy takes it."""
        ...

    def chosen(self, layer: int) -> NDArray[np.int32]:
        """[rows, K]: the experts that the last run chose in a layer with routed experts, once it was waited for."""
        ...

    def routing(self, stop: Stop, count: int) -> tuple[Any, Any]:
        """[count, K] int32 ids and float32 weights for the experts at `stop`: views, as `rows`.

        Others may overwrite them once the router's ops are through; groups then need places for their experts.
        """
        ...


class Programs(Protocol):
    """Makes the programs of one device."""

    @property
    def latents(self) -> Latents:
        """Where the programs write the latent cache: devices that have the same one share it."""
        ...

    def whole(self, max_tokens: int) -> PieceProgram:
        """The network; it stops at each layer's routed experts, which come in groups."""
        ...

    def own(self, max_tokens: int) -> PieceProgram:
        """The network with the routed experts elsewhere: it stops where their input is there, and their sum is due."""
        ...

    def mixtures(self, max_tokens: int) -> PieceProgram:
        """Router and routed experts of all layers: x of each is given, and their sum is what others take."""
        ...


def chosen_experts(program: PieceProgram, tokens: Tokens, top_k: int) -> NDArray[np.int32] | None:
    """[moe layers, T, K]: what the last run, about `tokens`, chose; NOT_COMPUTED where only selected rows were."""
    stops = [stop for stop in program.stops if stop.kind == "experts"]
    if not stops:
        return None
    chosen = np.full((len(stops), tokens.num_rows, top_k), NOT_COMPUTED, np.int32)
    for n, stop in enumerate(stops):
        rows = tokens.selected if stop.x and stop.x.selected else np.arange(tokens.num_rows)
        chosen[n, rows] = program.chosen(n)[: len(rows)]
    return chosen


class PieceOps(Ops[Value], Protocol):
    """A dialect whose programs run piece by piece."""

    def given(self, width: int, selected: bool = False) -> Value:
        """[T, width]: rows that others fill before the run goes on."""
        ...

    def offered(self, x: Value) -> Callable[[], Value]:
        """Rows that others make of `x`, which they may read from here on. Called where [T, H] of theirs are due."""
        ...


def record_own(ops: PieceOps, model: Model, latents: Latents) -> Value:
    """The network without its routed experts, as Programs.own wants it: its logits."""
    return decode(ops, model, latents, lambda _, x, w: ops.offered(x))


def record_mixtures(ops: PieceOps, model: Model) -> None:
    """Router and routed experts of all layers, as Programs.mixtures wants them."""
    for n, layer in enumerate(model.layers):
        if layer.moe is not None:
            routed(ops, ops.given(model.config.hidden, selected=n == len(model.layers) - 1), layer.moe)


@dataclass(frozen=True)
class HostPrograms:
    """The CPU's: everything lies in the system's memory, and runs on `pool`."""

    model: Model
    cache: Latents
    pool: native.Pool
    target: str = ""
    worker_nodes: Sequence[int] = field(default=())

    @property
    def latents(self) -> Latents:
        """As Programs says."""
        return self.cache

    def whole(self, max_tokens: int) -> SegmentProgram:
        """As Programs says."""
        ops = SegmentOps()
        return self._program(ops, decode(ops, self.model, self.cache), max_tokens)

    def own(self, max_tokens: int) -> SegmentProgram:
        """As Programs says."""
        ops = SegmentOps()
        return self._program(ops, record_own(ops, self.model, self.cache), max_tokens)

    def mixtures(self, max_tokens: int, *, takes_bf16: bool = False, keeps_sums: bool = False) -> SegmentProgram:
        """As Programs says; with `takes_bf16` rows are given as devices have them that compute in BF16.

        `keeps_sums`: a layer's sum is taken while the next layer's rows are given.
        """
        ops = SegmentOps(takes_bf16=takes_bf16, keeps_sums=keeps_sums)
        record_mixtures(ops, self.model)
        return self._program(ops, None, max_tokens)

    def _program(self, ops: SegmentOps, output: Value | None, max_tokens: int) -> SegmentProgram:
        return SegmentProgram(ops, output, max_tokens, self.pool, self.target, self.worker_nodes)

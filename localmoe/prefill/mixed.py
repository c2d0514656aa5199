"""Prompts of medium length: a device attends, and shares each layer's routed experts with the CPU.

Only once a layer's routing is known, experts with many tokens are moved to the device's slots, on demand, and computed
there; the CPU computes the others where they rest, meanwhile. Who gets which is split.split's to say. Rows cross in
tiles, beside the attention of other tiles: see early.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Bytes, Device, Event
from localmoe.devices.spans import Span, Spans, Stage
from localmoe.errors import CancelledError, UsageError
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.kernels.recording import Value
from localmoe.kernels.segments import Group, Tokens
from localmoe.model.config import ModelConfig
from localmoe.model.crossing import DevicePart, lock_pages, offers_bf16, stops_of
from localmoe.model.network import new_flag
from localmoe.model.programs import HostPrograms, Programs, chosen_experts
from localmoe.prefill.early import NUM_TILES, Tile, Ways, cut
from localmoe.weights.expert_source import group_bytes, group_views

LOOK_S = 0.01  # how often whoever waits looks at the caller's cancel flag

STAGES: tuple[Stage, ...] = ("shared", "experts")

Choose = Callable[[NDArray[np.int64]], Sequence[int]]  # tokens of each expert [E] -> experts for the device, in order


class _Slot:
    """Room for one expert on the device, and its events: its bytes are there; nobody reads them any more."""

    def __init__(self, device: Device, view: Bytes) -> None:
        self.view = view
        self.ready = device.new_event()
        self.done = device.new_event()
        self.is_used = False  # in this run


class Mixed:
    """ops.Program on `device` and the CPU together, for up to `max_tokens` tokens a run.

    `programs` makes what the device computes with, `host` what the CPU does: its experts rest in memory, and are copied
    from there into `num_slots` slots of one expert. `choose` says which; None: the CPU has all. Rows cross in up to
    `num_tiles` tiles. One run at a time; whatever ends a run, the next one finds everything free. Raises
    OutOfMemoryError where device or page-locked memory does not suffice.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: Device,
        programs: Programs,
        host: HostPrograms,
        max_tokens: int,
        choose: Choose | None,
        *,
        num_slots: int = 4,
        num_tiles: int = NUM_TILES,
        recorded: Spans | None = None,
    ) -> None:
        if num_slots < 1 and choose:
            raise UsageError("experts that are moved to a device need a slot there.")
        self.max_tokens = max_tokens
        self.moved_bytes = 0  # of experts, by the last run
        self.recorded = Spans() if recorded is None else recorded
        self._config, self._device, self._choose = config, device, choose
        self._ways = Ways(device)
        self._most = -(-max_tokens // num_tiles)
        self._tiles = [Tile(device, self._ways, programs.own(self._most), n) for n in range(num_tiles)]
        self._running = self._tiles[:1]
        self._cpu = host.mixtures(max_tokens, takes_bf16=offers_bf16(self._tiles[0].program), keeps_sums=True)
        self._givens, self._experts = stops_of(self._cpu, "given"), stops_of(self._cpu, "experts")
        self._part = DevicePart(programs, max_tokens) if choose else None
        self._layers = [layer.moe.experts for layer in host.model.layers if layer.moe]
        self._resting = [[part.blob.reshape(-1) for part in experts.parts] for experts in self._layers]
        lock_pages(device, self._cpu)
        self._loads, self._done = device.new_stream("load"), device.new_event()
        self._marks = [_Marks(device) for _ in self._layers]
        self._has_moved = [False] * len(self._layers)
        nbytes = max((group_bytes(experts, 1) for experts in self._layers), default=0)
        count = num_slots if choose else 0
        self._memory = device.alloc(count * nbytes)
        self._slots = [_Slot(device, self._memory.view[n * nbytes : (n + 1) * nbytes]) for n in range(count)]
        self._places = np.eye(config.num_experts, dtype=np.int32) - 1  # row e: e is the only one of a group

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return sum(tile.program.progress for tile in self._running) / len(self._running)

    @property
    def nbytes(self) -> int:
        """Activations and scratch, beside the slots."""
        part = self._part.nbytes if self._part else 0
        return sum(tile.program.nbytes for tile in self._tiles) + self._cpu.nbytes + part

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, T, K]: the experts that the last run chose; NOT_COMPUTED where only selected rows were."""
        return chosen_experts(self._cpu, self._tokens, self._config.top_k)

    def forward(
        self,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        urgent: bool = False,
        cancel: CancelFlag | None = None,
        all_logits: bool = False,
        forced_experts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """As ops.Program says. Raises what ended the run too: DeviceLostError, what a copy failed with."""
        most, vocab = self.max_tokens, self._config.vocab
        own = Tokens.of_run(ids, segments, all_logits=all_logits, forced_experts=None, most=most, vocab=vocab)
        tokens = Tokens.of_run(
            ids, segments, all_logits=all_logits, forced_experts=forced_experts, most=most, vocab=vocab
        )
        self._tokens, self.moved_bytes = tokens, 0
        flag = new_flag()
        shares = cut(own, len(self._tiles), self._most)
        self._running = self._tiles[: len(shares)]
        for tile, share in zip(self._running, shares, strict=True):
            tile.begin(share, flag, urgent=urgent)
        if self._part:
            self._part.begin(own, flag, urgent=urgent)
        self._cpu.begin(tokens, cancel, urgent=urgent)
        for slot in self._slots:
            slot.is_used = False
        try:
            self._run(cancel)
        except BaseException:
            flag.set()
            self._ways.reset()
            self._loads.reset()
            raise
        self._tell()
        return self._logits()

    def close(self) -> None:
        """Gives the slots back. The device is the caller's to close."""
        self._ways.reset()
        self._loads.reset()
        self._memory.free()

    def _run(self, cancel: CancelFlag | None) -> None:
        for n in range(len(self._layers)):
            for tile, before in zip(self._running, (None, *self._running), strict=False):
                self._resume(n - 1, tile, before)
                tile.attend(n, self._rows(n, self._givens[n].x))
            self._layer(n, cancel)
        for tile in self._running:
            self._resume(len(self._layers) - 1, tile, None)
            tile.end()
        self._ways.computes.record(self._done)
        self._wait(self._done, cancel)

    def _resume(self, n: int, tile: Tile, before: Tile | None) -> None:
        """Issues how a layer's experts' sum comes back to the tile, which then goes on. Nothing before the first layer.

        Nobody needs it before the tile `before` is attended to, so it comes beside that: the link is free until then.
        Shared experts use the same memory on the device.
        """
        if n < 0:
            return
        after = [self._marks[n].shared, *([before.begun(n + 1)] if before else [])]
        tile.collect(n, self._rows(n, self._experts[n].out), *after)
        tile.resume(n, self._part if self._has_moved[n] else None)

    def _layer(self, n: int, cancel: CancelFlag | None) -> None:
        """Experts of all tokens. Who attends has been issued; what the device does meanwhile is issued here."""
        computes, stop, marks = self._ways.computes, self._experts[n], self._marks[n]
        computes.record(marks.attended)
        if self._part:
            for tile in self._running:
                tile.give(n, self._part)
            self._part.prepare(computes, n)
        for tile in self._running:
            tile.share_experts(n)
        computes.record(marks.shared)
        for tile in self._running:
            self._wait(tile.left(n), cancel)
        self._cpu.run(self._experts[n - 1].op + 1 if n else 0, stop.op)
        moved = list(self._choose(self._counts(n))) if self._choose else []
        if moved and self._part:
            self._part.choose(computes, n, *self._cpu.routing(stop, self._num_rows(n)))
            self._move(n, moved, self._part)
        self._has_moved[n] = bool(moved)
        computes.record(marks.computed)
        start_s = perf_counter()
        self._cpu.run_group(stop, Group(0, self._config.num_experts, self._resting[n], True, self._others(moved)))
        self.recorded.add(Span("cpu", "experts", n, -1, start_s, perf_counter()))

    def _move(self, n: int, experts: Sequence[int], part: DevicePart) -> None:
        """Issues copy and computation of each expert; a slot's next expert waits until the one before is computed."""
        for turn, expert in enumerate(experts):
            slot = self._slots[turn % len(self._slots)]
            if slot.is_used:
                self._loads.wait(slot.done)
            slot.is_used = True
            data = group_views(self._layers[n], 1, slot.view)
            for view, blob in zip(data, self._blobs(n, expert), strict=True):
                self._loads.copy_async(view, blob)
                self.moved_bytes += len(blob)
            self._loads.record(slot.ready)
            self._ways.computes.wait(slot.ready)
            part.compute(self._ways.computes, n, Group(0, 1, data, turn == 0, self._places[expert]))
            self._ways.computes.record(slot.done)

    def _blobs(self, n: int, expert: int) -> list[Bytes]:
        """The expert's bytes of each part, where they rest."""
        return [part.blob[expert] for part in self._layers[n].parts]

    def _counts(self, n: int) -> NDArray[np.int64]:
        """[E]: tokens of each expert."""
        chosen = self._cpu.chosen(n)[: self._num_rows(n)]
        return np.bincount(chosen.reshape(-1), minlength=self._config.num_experts)

    def _others(self, moved: Sequence[int]) -> NDArray[np.int32]:
        """For Group.places: all experts but those that were moved, where they rest."""
        places = np.arange(self._config.num_experts, dtype=np.int32)
        places[list(moved)] = -1
        return places

    def _wait(self, event: Event, cancel: CancelFlag | None) -> None:
        while not event.wait(LOOK_S):
            if cancel is not None and cancel.is_set():
                raise CancelledError("The run was cancelled.")
            if self._device.failure:
                raise self._device.failure

    def _num_rows(self, n: int) -> int:
        """That cross in a layer."""
        x = self._experts[n].x
        assert x is not None
        return len(self._tokens.selected) if x.selected else self._tokens.num_rows

    def _rows(self, n: int, value: Value | None) -> Any:
        """A layer's rows of all tokens, in the system's memory."""
        assert value is not None
        return self._cpu.rows(value, self._num_rows(n))

    def _logits(self) -> NDArray[np.float32]:
        logits = np.empty((len(self._tokens.selected), self._config.vocab), np.float32)
        for tile in self._running:
            found = tile.program.logits
            for rows in tile.share.selected:
                logits[rows.whole : rows.whole + rows.count] = found[rows.own : rows.own + rows.count]
        return logits

    def _tell(self) -> None:
        """What the device did in the run that is through."""
        for n, marks in enumerate(self._marks):
            for tile in self._running:
                tile.tell(self.recorded, n)
            marks.tell(self.recorded, self._device.name, n, has_experts=self._has_moved[n])


class _Marks:
    """Points of one layer on the device: all tiles are attended to, shared experts are done, moved ones are too."""

    def __init__(self, device: Device) -> None:
        self.attended, self.shared, self.computed = (device.new_event() for _ in range(3))

    def tell(self, spans: Spans, name: str, layer: int, *, has_experts: bool) -> None:
        """Adds both stages, once they are through."""
        pairs = ((self.attended, self.shared), *(((self.shared, self.computed),) if has_experts else ()))
        for stage, (first, last) in zip(STAGES, pairs, strict=False):
            start_s, end_s = first.reached_s, last.reached_s
            if start_s is not None and end_s is not None:
                spans.add(Span(name, stage, layer, -1, start_s, end_s))

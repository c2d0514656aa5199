"""What crosses between a device and the CPU where both compute routed experts of one layer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from localmoe.devices.device import Device, Event, Stream
from localmoe.devices.spans import Span, Spans, Stage
from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import CancelFlag
from localmoe.kernels.segments import Group, SegmentProgram, Stop, StopKind, Tokens
from localmoe.model.programs import PieceProgram, Programs

BF16_BYTES = 2


def stops_of(program: PieceProgram, kind: StopKind) -> Sequence[Stop]:
    """Its stops of one kind, by layer."""
    return [stop for stop in program.stops if stop.kind == kind]


def offers_bf16(own: PieceProgram) -> bool:
    """Whether the rows that `own` offers are BF16; else they are float32."""
    offers = [stop.x for stop in stops_of(own, "offer") if stop.x is not None]
    return bool(offers) and bool(own.rows(offers[0], 1).nbytes == BF16_BYTES * offers[0].width)


def lock_pages(device: Device, mixtures: SegmentProgram) -> None:
    """Makes ready for copies what devices read and write. OutOfMemoryError where the system locks no more memory."""
    chosen = [mixtures.chosen(stop.layer).reshape(-1).view(np.uint8) for stop in stops_of(mixtures, "experts")]
    try:
        for memory in (mixtures.memory, *chosen):
            device.register(memory, pinned=True, portable=False)
    except OSError as error:
        raise OutOfMemoryError(
            f"rows for {device.name} need page-locked memory, and the system locks no more: {error}.",
            "raise the limit: `ulimit -l unlimited`, or LimitMEMLOCK=infinity for a service.",
        ) from error


class LayerMarks:
    """Points of one layer on a device: rows are offered, shared experts are done, routed ones too, the sum is there."""

    def __init__(self, device: Device) -> None:
        self._name = device.name
        self.offered, self.shared, self.computed, self.summed = (device.new_event() for _ in range(4))

    def tell(self, spans: Spans, layer: int, begin: Event, *, has_experts: bool) -> None:
        """Adds what the device did, once it is through; `begin` is the end of the layer before."""
        self._tell(spans, "attention", layer, begin, self.offered)
        self._tell(spans, "shared", layer, self.offered, self.shared)
        if has_experts:
            self._tell(spans, "experts", layer, self.shared, self.computed)

    def _tell(self, spans: Spans, stage: Stage, layer: int, first: Event, last: Event) -> None:
        start_s, end_s = first.reached_s, last.reached_s
        if start_s is not None and end_s is not None:
            spans.add(Span(self._name, stage, layer, -1, start_s, end_s))


class DevicePart:
    """Some of a layer's experts on a device, for tokens whose experts the CPU has chosen. Everything is issued."""

    def __init__(self, programs: Programs, max_tokens: int) -> None:
        self._mixtures = programs.mixtures(max_tokens)
        self._stops = stops_of(self._mixtures, "experts")
        self._num_rows = (0, 0)  # of the run: of all tokens, and of selected ones

    @property
    def nbytes(self) -> int:
        """Activations and scratch."""
        return self._mixtures.nbytes

    def begin(self, tokens: Tokens, cancel: CancelFlag, *, urgent: bool) -> None:
        """The run that follows is about `tokens`; experts are not forced here."""
        assert tokens.forced_experts is None
        self._num_rows = tokens.num_rows, len(tokens.selected)
        self._mixtures.begin(tokens, cancel, urgent=urgent)

    def give(self, stream: Stream, layer: int, rows: Any) -> None:
        """The layer's input, of all tokens, and what its groups want made of it."""
        self.take(stream, layer, rows, 0)
        self.prepare(stream, layer)

    def take(self, stream: Stream, layer: int, rows: Any, first: int) -> None:
        """The layer's input of the tokens from `first` on, as far as `rows` go."""
        stop = self._stops[layer]
        stream.peer_copy(self._rows(stop, stop.x)[first : first + len(rows)], rows)

    def prepare(self, stream: Stream, layer: int) -> None:
        """What the layer's groups want made of its input."""
        stop, first = self._stops[layer], self._stops[layer - 1].op + 1 if layer else 0
        stream.launch(partial(self._mixtures.run, first, stop.op))

    def choose(self, stream: Stream, layer: int, ids: Any, weights: Any) -> None:
        """What was chosen: ids and weights [T, K]."""
        mine, my_weights = self._mixtures.routing(self._stops[layer], len(ids))
        stream.peer_copy(mine, ids)
        stream.peer_copy(my_weights, weights)

    def compute(self, stream: Stream, layer: int, group: Group) -> None:
        """Experts that have places in `group`."""
        stream.launch(partial(self._mixtures.run_group, self._stops[layer], group))

    def add_to(self, stream: Stream, layer: int, rows: Any, first: int = 0) -> None:
        """The groups' sum, added to `rows`: those of the tokens from `first` on."""
        stop = self._stops[layer]
        stream.launch(partial(_add, rows, self._rows(stop, stop.out)[first : first + len(rows)]))

    def _rows(self, stop: Stop, value: Any) -> Any:
        assert stop.x is not None
        return self._mixtures.rows(value, self._num_rows[stop.x.selected])


def _add(target: Any, source: Any) -> None:
    target += source

"""One device's part of the pipeline: its ring, its streams, its programs, and what its actors hand to each other."""

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from localmoe.devices.device import Bytes, Device, Event, Stream
from localmoe.devices.spans import Span, Spans, Stage
from localmoe.kernels.segments import Tokens
from localmoe.model.cache import Latents
from localmoe.model.programs import PieceProgram
from localmoe.prefill.ring import GroupPlan, Ring, Slot, of_layers
from localmoe.weights.expert_source import ExpertSource

Computed = Callable[[GroupPlan, Sequence[Bytes]], None]  # a group, and where its experts lie


@dataclass(frozen=True)
class _Timing:
    """A span to be, between two points of a stream."""

    stage: Stage
    layer: int
    group: int
    num_bytes: int
    begun: Event
    ended: Event


@dataclass
class Lane:
    """`program` computes what is not routed; `mixtures` has the experts' ops: the same, or one for all tokens.

    `latents` is what `program` writes; `home` is where decode wants them, None where that is the same.
    """

    device: Device
    source: ExpertSource
    ring: Ring
    all_groups: Sequence[GroupPlan]
    program: PieceProgram
    mixtures: PieceProgram
    spans: Spans
    latents: Latents
    home: Latents | None = None
    computed: Computed | None = None  # told of each group, on the compute stream
    groups: Iterable[GroupPlan] = field(init=False)  # of the pass
    loads: Stream = field(init=False)
    computes: Stream = field(init=False)
    unloads: Stream = field(init=False)
    reached: Event = field(init=False)  # of the compute stream: what others wait for
    moved: Event = field(init=False)  # of the stream that moves latents
    written: "queue.SimpleQueue[Event]" = field(init=False)  # from the model to the unloader: a layer's latents
    tokens: Tokens | None = field(init=False, default=None)  # that `program` runs for
    loading: "queue.SimpleQueue[Slot]" = field(init=False)  # from the loader to the model
    computing: "queue.SimpleQueue[Slot]" = field(init=False)  # from the model to the unloader
    loaded_bytes: int = field(init=False, default=0)  # of the pass that runs, or ran last

    def __post_init__(self) -> None:
        self.loads = self.device.new_stream("load")
        self.computes = self.device.new_stream("compute")
        self.unloads = self.device.new_stream("unload")
        self.reached, self.moved = self.device.new_event(), self.device.new_event()
        self.written_at = [self.device.new_event() for stop in self.program.stops if stop.kind == "latents"]
        self.begin(self.all_groups)

    def begin(self, groups: Iterable[GroupPlan]) -> None:
        """A new pass of `groups`, with empty queues."""
        self.groups = groups
        num_layers = sum(stop.kind == "experts" for stop in self.mixtures.stops)
        self.by_layer = of_layers(self.all_groups, num_layers)
        self.loading = queue.SimpleQueue()
        self.computing = queue.SimpleQueue()
        self.written = queue.SimpleQueue()
        self._timings: deque[_Timing] = deque()
        self.loaded_bytes = 0
        self.tokens = None

    def add_span(self, stage: Stage, layer: int, group: int, start_s: float, end_s: float, num_bytes: int = 0) -> None:
        """Of this device."""
        self.spans.add(Span(self.device.name, stage, layer, group, start_s, end_s, num_bytes))

    @contextmanager
    def timed(self, stream: Stream, stage: Stage, layer: int, group: int = -1, num_bytes: int = 0) -> Iterator[None]:
        """What is issued to `stream` within becomes a span, once it is over."""
        timing = _Timing(stage, layer, group, num_bytes, self.device.new_event(), self.device.new_event())
        stream.record(timing.begun)
        yield
        stream.record(timing.ended)
        self._timings.append(timing)

    def tell(self) -> None:
        """Adds the spans that are over, as far as none before them is under way. From one thread at a time."""
        while self._timings and (end_s := self._timings[0].ended.reached_s) is not None:
            t = self._timings.popleft()
            start_s = t.begun.reached_s
            if start_s is not None:
                self.add_span(t.stage, t.layer, t.group, start_s, end_s, t.num_bytes)

    def latents_written(self, layer: int) -> None:
        """A layer's latents are there once what was issued so far is done."""
        self.computes.record(self.written_at[layer])
        self.written.put(self.written_at[layer])

    def reset(self) -> None:
        """After a failure: nothing runs any more, and every slot and event is free."""
        self.computes.reset()
        self.loads.reset()
        self.unloads.reset()
        self.ring.reset()

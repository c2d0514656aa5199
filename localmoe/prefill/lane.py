"""One device's part of the pipeline: its ring, its streams, its programs, and what its actors hand to each other."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from localmoe.devices.device import Device, Event, Stream
from localmoe.kernels.segments import SegmentProgram
from localmoe.prefill.ring import GroupPlan, Ring, Slot, of_layers
from localmoe.prefill.spans import Span, Spans, Stage
from localmoe.weights.expert_source import ExpertSource


@dataclass
class Lane:
    """`program` computes what is not routed; `mixtures` has the experts' ops: the same, or one for all tokens."""

    device: Device
    source: ExpertSource
    ring: Ring
    groups: Sequence[GroupPlan]
    program: SegmentProgram
    mixtures: SegmentProgram
    spans: Spans
    loads: Stream = field(init=False)
    computes: Stream = field(init=False)
    reached: Event = field(init=False)  # of the compute stream: what others wait for
    loading: "queue.SimpleQueue[Slot]" = field(init=False)  # from the loader to the model
    computing: "queue.SimpleQueue[Slot]" = field(init=False)  # from the model to the unloader
    loaded_bytes: int = field(init=False, default=0)  # of the pass that runs, or ran last

    def __post_init__(self) -> None:
        self.loads = self.device.new_stream("load")
        self.computes = self.device.new_stream("compute")
        self.reached = self.device.new_event()
        num_layers = sum(stop.kind == "experts" for stop in self.mixtures.ops.stops)
        self.by_layer = of_layers(self.groups, num_layers)
        self.begin()

    def begin(self) -> None:
        """Empty queues for a new pass."""
        self.loading = queue.SimpleQueue()
        self.computing = queue.SimpleQueue()
        self.loaded_bytes = 0

    def add_span(self, stage: Stage, layer: int, group: int, start_s: float, end_s: float) -> None:
        """Of this device."""
        self.spans.add(Span(self.device.name, stage, layer, group, start_s, end_s))

    def reset(self) -> None:
        """After a failure: nothing runs any more, and every slot and event is free."""
        self.computes.reset()
        self.loads.reset()
        self.ring.reset()

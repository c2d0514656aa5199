"""A model whose long prompts stream their experts to GPUs; shorter ones, and steps, have experts on the CPU."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.decode.alternation import Measured
from localmoe.decode.beside import Beside
from localmoe.decode.hot import HotExperts
from localmoe.devices.device import Device
from localmoe.devices.spans import Spans
from localmoe.devices.turns import Askers
from localmoe.engine.activity import Activity
from localmoe.engine.gpu_program import GpuProgram, Streams
from localmoe.engine.gpu_steps import GpuSteps, Seen
from localmoe.engine.plan.beside import EARLY_FROM
from localmoe.engine.plan.parts import Sharing
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.errors import VerificationError
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig
from localmoe.model.network import Network
from localmoe.model.programs import HostPrograms, Programs
from localmoe.prefill.mixed import Mixed
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.prefill.split import split
from localmoe.weights.expert_source import MemoryExperts

PATIENCE_S = 60.0  # for one expert's bytes


@dataclass(frozen=True)
class Streaming:
    """How prompts are read: from `from_tokens` on streamed, through rings of `shape` (None: never); else in chunks.

    `sharing`: what the first GPU does beside the CPU. `alone_tokens`: of a prompt that the last GPU reads alone while
    answers are written, at most; None: all do.
    """

    from_tokens: int | None
    shape: Shape
    chunk: int
    sharing: Sharing
    alone_tokens: int | None = None


@dataclass(frozen=True)
class Side:
    """One GPU, and what makes its programs."""

    device: Device
    programs: Programs


class GpuNetwork:
    """model.network.Network's face, over one that is complete on the CPU and whose experts `source` has.

    `sides` are the plan's GPUs, in its order: the first of them attends for whatever is not streamed; while it does so
    for answers, the last one may read a long prompt alone, on the same weights and slots. `askers`: those whom a
    streamed prompt leaves the first one to; None: streams' priorities part them.
    """

    # Each phase has streams and activations of its own, and its pages of the latent cache; weights are only read.
    runs_together = True

    def __init__(
        self,
        network: Network,
        source: MemoryExperts,
        sides: Sequence[Side],
        streaming: Streaming,
        askers: Askers | None = None,
    ) -> None:
        self._network = network
        self._askers = askers
        self._source = source
        self._sides = sides
        self._streaming = streaming
        self._host = HostPrograms(network.model, network.cache, network.pool, network.isa, network.worker_nodes)
        self._layers = [layer.moe.experts for layer in network.model.layers if layer.moe]
        self._activity = Activity()
        self._seen = Seen(network.config.num_moe_layers, network.config.num_experts)
        self._open = ExitStack()
        self._open.callback(network.close)
        for side in sides:
            self._open.callback(side.device.close)

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        return self._network.config

    @property
    def cache(self) -> LatentCache:
        """The latent cache of all sessions: its tables are those of the GPUs' pages."""
        return self._network.cache

    @property
    def isa(self) -> str:
        """The instruction-set target of the CPU's part."""
        return self._network.isa

    @property
    def pool(self) -> native.Pool:
        """The CPU's workers."""
        return self._network.pool

    @property
    def num_threads(self) -> int:
        """Workers of the pool."""
        return self._network.num_threads

    def program(self, max_tokens: int) -> GpuProgram | GpuSteps:
        """The whole network for up to `max_tokens` tokens: for steps, or with a ring on each GPU where so many come."""
        return self._steps(max_tokens) if max_tokens <= MAX_BATCH else self._reading(max_tokens)

    def passing(self, max_tokens: int) -> GpuSteps:
        """What reads prompts while a longer one's run goes on: like a step on the first GPU, but behind those."""
        turns, recorded = self._askers.passing if self._askers else None, Spans()

        def make(hot: HotExperts | None) -> Beside:
            return self._beside(max_tokens, recorded, hot=hot, turns=turns, urgency="early")

        return self._telling(make, num_hot=0)

    def _steps(self, max_tokens: int) -> GpuSteps:
        sharing, recorded = self._streaming.sharing, Spans()
        turns = self._askers.steps if self._askers else None

        def make(hot: HotExperts | None) -> Beside:
            alternation = Measured() if sharing.alternates else None
            return self._beside(max_tokens, recorded, hot=hot, alternation=alternation, turns=turns)

        return self._telling(make, sharing.num_hot)

    def _telling(self, make: Callable[[HotExperts | None], Beside], num_hot: int) -> GpuSteps:
        place = partial(HotExperts, self._sides[0].device, self._layers)
        steps = GpuSteps(make, self._seen, self._activity, num_hot, place)
        self._open.callback(steps.close)
        return steps

    def _reading(self, max_tokens: int) -> GpuProgram:
        how, sharing, recorded = self._streaming, self._streaming.sharing, Spans()
        few = min(max_tokens, sharing.mixed_from - 1 if sharing.mixed_from else how.chunk)
        mixed = None
        if sharing.mixed_from:
            mixed = self._mixed(max_tokens, recorded) if few < max_tokens else None
        elif few >= EARLY_FROM:
            mixed, few = self._in_tiles(few, recorded), EARLY_FROM - 1
        beside = self._beside(few, recorded, urgency="bulk")
        self._open.callback(beside.close)
        return GpuProgram(max_tokens, beside, mixed, self._streams(max_tokens, recorded), recorded, self._seen)

    def _beside(self, max_tokens: int, recorded: Spans, **options: Any) -> Beside:
        first = self._sides[0]
        return Beside(self.config, first.device, first.programs, self._host, max_tokens, recorded=recorded, **options)

    def _mixed(self, max_tokens: int, recorded: Spans) -> Mixed:
        first, sharing = self._sides[0], self._streaming.sharing
        mixed = Mixed(
            self.config,
            first.device,
            first.programs,
            self._host,
            min(max_tokens, sharing.mixed_tokens),
            lambda counts: split(counts, sharing.rates).device,
            num_slots=sharing.slots,
            recorded=recorded,
        )
        self._open.callback(mixed.close)
        return mixed

    def _in_tiles(self, max_tokens: int, recorded: Spans) -> Mixed:
        """All routed experts on the CPU, and rows on their way while the device attends."""
        first = self._sides[0]
        mixed = Mixed(self.config, first.device, first.programs, self._host, max_tokens, None, recorded=recorded)
        self._open.callback(mixed.close)
        return mixed

    def _streams(self, max_tokens: int, recorded: Spans) -> Streams | None:
        """The last GPU's slots are those of both ways: only one of them is used at a time."""
        how, count = self._streaming, len(self._sides)
        if how.from_tokens is None or max_tokens < how.from_tokens:
            return None
        together, alone = self._pipeline(self._sides, max_tokens, how.shape, recorded), None
        if how.alone_tokens and count > 1:
            group = min(how.shape.group_experts, max(1, self.config.num_experts // count))
            shape, lent = Shape(group, how.shape.num_slots), together.ring_memory[-1]
            tokens = min(max_tokens, how.alone_tokens)
            alone = self._pipeline(self._sides[-1:], tokens, shape, recorded, lent=lent)
        return Streams(how.from_tokens, together, alone, self._activity)

    def _pipeline(
        self, sides: Sequence[Side], max_tokens: int, shape: Shape, recorded: Spans, **options: Any
    ) -> Pipeline:
        pipeline = Pipeline(
            self.config,
            self.cache,
            self._source,
            [side.device for side in sides],
            [side.programs for side in sides],
            max_tokens,
            shape,
            recorded=recorded,
            home=self._sides[0].programs.latents,
            **options,
        )
        self._open.callback(pipeline.close)
        return pipeline

    def self_test(self) -> None:
        """As Network's; and an expert's bytes to each GPU and back, which must be the same."""
        self._network.self_test()
        blobs = self._source.blobs(0, 0, 1)
        for side in self._sides:
            if not (_there_and_back(side.device, blobs[0]) == blobs[0]).all():
                raise VerificationError(
                    f"bytes that were copied to {side.device.name} and back are not the same.",
                    "its link or its memory is at fault: reseat the card, and look at `nvidia-smi -q` for errors",
                )

    def close(self) -> None:
        """Lets go of rings, devices and weights."""
        self._open.close()


def _there_and_back(device: Device, blob: NDArray[np.uint8]) -> NDArray[np.uint8]:
    memory, stream, done = device.alloc(len(blob)), device.new_stream("self-test"), device.new_event()
    back = np.zeros_like(blob)
    try:
        stream.copy_async(memory.view, blob)
        stream.peer_copy(back, memory.view)
        stream.record(done)
        done.wait(PATIENCE_S)
    finally:
        stream.reset()
        memory.free()
    return back

"""A model whose long prompts stream their experts to GPUs; shorter ones, and steps, have experts on the CPU."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.decode.alternation import Measured
from localmoe.decode.beside import Beside
from localmoe.decode.hot import HotExperts
from localmoe.devices.device import Device
from localmoe.devices.spans import Spans
from localmoe.devices.turns import Turns
from localmoe.engine.gpu_steps import GpuSteps, Seen
from localmoe.engine.plan.beside import EARLY_FROM
from localmoe.engine.plan.parts import Sharing
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.errors import VerificationError
from localmoe.kernels.ops import CancelFlag, Segment
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

    `sharing`: what the first GPU does beside the CPU.
    """

    from_tokens: int | None
    shape: Shape
    chunk: int
    sharing: Sharing


@dataclass(frozen=True)
class Side:
    """One GPU, and what makes its programs."""

    device: Device
    programs: Programs


class GpuNetwork:
    """model.network.Network's face, over one that is complete on the CPU and whose experts `source` has.

    `sides` are the plan's GPUs, in its order: the first of them attends for whatever is not streamed. `turns`: of steps
    there with prompts that are; None: streams' priorities part them.
    """

    # Each phase has streams and activations of its own, and its pages of the latent cache; weights are only read.
    runs_together = True

    def __init__(
        self,
        network: Network,
        source: MemoryExperts,
        sides: Sequence[Side],
        streaming: Streaming,
        turns: Turns | None = None,
    ) -> None:
        self._network = network
        self._turns = turns
        self._source = source
        self._sides = sides
        self._streaming = streaming
        self._host = HostPrograms(network.model, network.cache, network.pool, network.isa, network.worker_nodes)
        self._layers = [layer.moe.experts for layer in network.model.layers if layer.moe]
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

    def program(self, max_tokens: int) -> "GpuProgram | GpuSteps":
        """The whole network for up to `max_tokens` tokens: for steps, or with a ring on each GPU where so many come."""
        return self._steps(max_tokens) if max_tokens <= MAX_BATCH else self._reading(max_tokens)

    def _steps(self, max_tokens: int) -> GpuSteps:
        sharing, device, recorded = self._streaming.sharing, self._sides[0].device, Spans()

        def make(hot: HotExperts | None) -> Beside:
            alternation = Measured() if sharing.alternates else None
            return self._beside(max_tokens, recorded, hot=hot, alternation=alternation, turns=self._turns)

        steps = GpuSteps(make, self._seen, sharing.num_hot, lambda ids: HotExperts(device, self._layers, ids))
        self._open.callback(steps.close)
        return steps

    def _reading(self, max_tokens: int) -> "GpuProgram":
        how, sharing, recorded = self._streaming, self._streaming.sharing, Spans()
        few = min(max_tokens, sharing.mixed_from - 1 if sharing.mixed_from else how.chunk)
        mixed = None
        if sharing.mixed_from:
            mixed = self._mixed(max_tokens, recorded) if few < max_tokens else None
        elif few >= EARLY_FROM:
            mixed, few = self._in_tiles(few, recorded), EARLY_FROM - 1
        beside = self._beside(few, recorded, urgent=False)
        self._open.callback(beside.close)
        is_streamed = how.from_tokens is not None and max_tokens >= how.from_tokens
        pipeline = self._pipeline(max_tokens, recorded) if is_streamed else None
        streamed_from = how.from_tokens if is_streamed and how.from_tokens else max_tokens + 1
        return GpuProgram(max_tokens, beside, mixed, pipeline, streamed_from, recorded, self._seen)

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

    def _pipeline(self, max_tokens: int, recorded: Spans) -> Pipeline:
        pipeline = Pipeline(
            self.config,
            self.cache,
            self._source,
            [side.device for side in self._sides],
            [side.programs for side in self._sides],
            max_tokens,
            self._streaming.shape,
            recorded=recorded,
            home=self._sides[0].programs.latents,
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


class GpuProgram:
    """ops.Program: prompts from `streamed_from` tokens on through the pipeline, medium ones shared by the first GPU and
    the CPU, or cut in tiles, short ones, of up to beside.max_tokens, with all experts on the CPU. Where `mixed` is None
    short ones are read in pieces.
    """

    def __init__(
        self,
        max_tokens: int,
        beside: Beside,
        mixed: Mixed | None,
        pipeline: Pipeline | None,
        streamed_from: int,
        recorded: Spans,
        seen: Seen,
    ) -> None:
        self.max_tokens = max_tokens
        self.recorded = recorded
        self.streamed_from = streamed_from
        self._beside, self._mixed, self._pipeline = beside, mixed, pipeline
        self._seen = seen
        self._running: Beside | Mixed | Pipeline = beside
        self._pieces = 0, 1  # of a run that is read in pieces: which one runs, of how many

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        done, count = self._pieces
        return (done + self._running.progress) / count

    @property
    def nbytes(self) -> int:
        """Activations and scratch at all places, beside the rings."""
        return sum(program.nbytes for program in (self._beside, self._mixed, self._pipeline) if program)

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """As Pipeline's; of a run in pieces, the last one's."""
        return self._running.last_experts

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
        """As ops.Program says; raises what a device failed with too."""
        self._running = program = self._for(len(ids))

        def run(part: slice, of: Sequence[Segment]) -> NDArray[np.float32]:
            forced = None if forced_experts is None else forced_experts[:, part]
            found = program.forward(
                ids[part], of, urgent=urgent, cancel=cancel, all_logits=all_logits, forced_experts=forced
            )
            self._seen.add(program.last_experts)
            return found

        if len(ids) <= program.max_tokens:
            self._pieces = 0, 1
            return run(slice(None), segments)
        (segment,) = segments  # a prompt: steps are never that long
        return self._in_pieces(segment, program.max_tokens, run, all_logits)

    def _for(self, num_tokens: int) -> Beside | Mixed | Pipeline:
        """What reads so many."""
        if self._pipeline and num_tokens >= self.streamed_from:
            return self._pipeline
        return self._mixed if self._mixed and num_tokens > self._beside.max_tokens else self._beside

    def _in_pieces(
        self,
        segment: Segment,
        most: int,
        run: Callable[[slice, Sequence[Segment]], NDArray[np.float32]],
        all_logits: bool,
    ) -> NDArray[np.float32]:
        """A prompt that is too short to be streamed, and too long for one run beside the GPU."""
        starts = range(0, segment.count, most)
        found = []
        for n, at in enumerate(starts):
            self._pieces = n, len(starts)
            count = min(most, segment.count - at)
            found.append(run(slice(at, at + count), [Segment(segment.table, segment.start + at, count)]))
        return np.concatenate(found) if all_logits else found[-1]


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

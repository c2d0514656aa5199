"""A model larger than memory on this machine's CPU: experts that do not rest in memory come from disk."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.decode.on_demand import OnDemand
from localmoe.devices.device import Bytes
from localmoe.devices.host import HostDevice
from localmoe.devices.spans import Spans
from localmoe.engine.disk_slots import disk_slots
from localmoe.engine.plan.parts import Ring
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig
from localmoe.model.network import Network
from localmoe.model.programs import HostPrograms
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.prefill.ring import GroupPlan
from localmoe.weights.expert_cache import CachedExperts
from localmoe.weights.expert_source import group_bytes


class DiskNetwork:
    """model.network.Network's face. Prompts stream all experts that are missing, steps read those that are chosen."""

    # The experts that DRAM keeps are one cache, whose pages a passing prompt and a step would take from each other; and
    # the disk, which both wait for, does not read faster for two.
    runs_together = False

    def __init__(self, network: Network, source: CachedExperts, ring: Ring) -> None:
        self._network = network
        self._source = source
        self._ring = ring
        self._host = HostPrograms(network.model, network.cache, network.pool, network.isa)
        self._programs: list[DiskProgram] = []
        self._devices: list[HostDevice] = []

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        return self._network.config

    @property
    def cache(self) -> LatentCache:
        """The latent cache of all sessions."""
        return self._network.cache

    @property
    def isa(self) -> str:
        """The instruction-set target."""
        return self._network.isa

    @property
    def pool(self) -> native.Pool:
        """The workers."""
        return self._network.pool

    @property
    def num_threads(self) -> int:
        """Workers of the pool."""
        return self._network.num_threads

    def program(self, max_tokens: int) -> "DiskProgram":
        """The whole network for up to `max_tokens` tokens, with slots of its own."""
        net, expert = self._network, self._expert_bytes()
        slots = disk_slots(self.config, self._ring.slots, max_tokens)
        device = HostDevice(slots.num_experts * (expert + 4096), name="cpu")
        self._devices.append(device)
        recorded = Spans()
        on_demand = OnDemand(net.config, self._host, self._source, device, slots.few, slots.num_slots, recorded)
        pipeline = None
        if slots.group:
            shape = Shape(slots.group, slots.num_groups)
            pipeline = self._pipeline(device, max_tokens, shape, recorded)
        self._programs.append(DiskProgram(max_tokens, self._source, on_demand, pipeline))
        return self._programs[-1]

    def passing(self, max_tokens: int) -> None:
        """Nothing may: a prompt's run has the disk and the cache of experts to itself, as `runs_together` says."""

    def _pipeline(self, device: HostDevice, max_tokens: int, shape: Shape, recorded: Spans) -> Pipeline:
        net, source = self._network, self._source

        def on_group(group: GroupPlan, data: Sequence[Bytes], chosen: NDArray[np.int32]) -> None:
            if group.is_first:
                source.count(group.layer, chosen)
            source.passes(group.layer, group.first, data)

        devices, programs = [device], [self._host]
        return Pipeline(
            net.config,
            net.cache,
            source,
            devices,
            programs,
            max_tokens,
            shape,
            recorded=recorded,
            on_group=on_group,
        )

    @property
    def slot_bytes(self) -> int:
        """Room for experts that pass, of all programs so far."""
        return sum(device.capacity - device.free_bytes for device in self._devices)

    def self_test(self) -> None:
        """As Network's."""
        self._network.self_test()

    def close(self) -> None:
        """Lets go of weights, slots and files."""
        for program in self._programs:
            program.close()
        for device in self._devices:
            device.close()
        self._source.close()
        self._network.close()

    def _expert_bytes(self) -> int:
        return max(group_bytes(self._source.experts(n), 1) for n in range(self.config.num_moe_layers))


class DiskProgram:
    """ops.Program: few tokens read the experts that they chose, many all that are missing, once."""

    def __init__(self, max_tokens: int, source: CachedExperts, on_demand: OnDemand, pipeline: Pipeline | None) -> None:
        self.max_tokens = max_tokens
        self.recorded = on_demand.recorded  # the pipeline's too
        self._source = source
        self._on_demand = on_demand
        self._pipeline = pipeline
        self._running: OnDemand | Pipeline = on_demand

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return self._running.progress

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """As Pipeline's."""
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
        """As ops.Program says; raises what a read failed with too."""
        is_few = self._pipeline is None or len(ids) <= self._on_demand.max_tokens
        self._running = program = self._on_demand if is_few or self._pipeline is None else self._pipeline
        with nullcontext() if is_few else self._source.a_pass(cancel.is_set if cancel else lambda: False):
            return program.forward(
                ids, segments, urgent=urgent, cancel=cancel, all_logits=all_logits, forced_experts=forced_experts
            )

    @property
    def nbytes(self) -> int:
        """Activations and scratch, beside the slots."""
        return self._on_demand.nbytes + (self._pipeline.nbytes if self._pipeline else 0)

    def close(self) -> None:
        """Gives the slots back."""
        self._on_demand.close()
        if self._pipeline:
            self._pipeline.close()

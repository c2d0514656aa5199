"""A model larger than memory on this machine's CPU: experts that do not rest in memory come from disk."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.on_demand import OnDemand
from localmoe.devices.host import HostDevice
from localmoe.engine.disk_slots import PREFILL_SLOTS, disk_slots
from localmoe.engine.plan.parts import Ring
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig
from localmoe.model.network import Network
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_cache import CachedExperts
from localmoe.weights.expert_source import group_bytes


class DiskNetwork:
    """model.network.Network's face. Prompts stream all experts that are missing, steps read those that are chosen."""

    def __init__(self, network: Network, source: CachedExperts, ring: Ring) -> None:
        self._network = network
        self._source = source
        self._ring = ring
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
    def num_threads(self) -> int:
        """Workers of the pool."""
        return self._network.num_threads

    def program(self, max_tokens: int) -> "DiskProgram":
        """The whole network for up to `max_tokens` tokens, with slots of its own."""
        net, expert = self._network, self._expert_bytes()
        slots = disk_slots(self.config, self._ring.slots, max_tokens)
        device = HostDevice(slots.num_experts * (expert + 4096), name="disk")
        self._devices.append(device)
        make = partial(OnDemand, net.model, net.cache, self._source, device, net.pool, target=net.isa)
        on_demand = make(slots.few, slots.num_slots)
        pipeline = None
        if slots.group:
            shape = Shape(slots.group, PREFILL_SLOTS)
            pipeline = Pipeline(
                net.model, net.cache, self._source, [device], net.pool, max_tokens, shape, target=net.isa
            )
        self._programs.append(DiskProgram(max_tokens, on_demand, pipeline))
        return self._programs[-1]

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

    def __init__(self, max_tokens: int, on_demand: OnDemand, pipeline: Pipeline | None) -> None:
        self.max_tokens = max_tokens
        self._on_demand = on_demand
        self._pipeline = pipeline
        self._running: OnDemand | Pipeline = on_demand

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return self._running.progress

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

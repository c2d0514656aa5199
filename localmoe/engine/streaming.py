"""Prompts through the stream-loading pipeline, and its parts alone, for those who measure it."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from localmoe import _native as native
from localmoe.devices.device import Bytes, Device, Step
from localmoe.devices.host import HostDevice
from localmoe.hardware.placement import worker_cpus
from localmoe.hub.checkpoint import Checkpoint
from localmoe.kernels.ops import Segment
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.decoder import load_model
from localmoe.model.network import choose_target
from localmoe.model.programs import HostPrograms, Programs
from localmoe.model.tensors import expected_tensors, expert_prefixes
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_files import FileExperts
from localmoe.weights.expert_source import ExpertSource
from localmoe.weights.layout import expert_of
from localmoe.weights.load import load
from localmoe.weights.store import Experts

SPARE_BYTES = 1 << 20  # of a device, beside its slots
PAGE_TOKENS = 64


class StreamedModel:
    """A checkpoint whose routed experts stay on disk; all else is in memory."""

    def __init__(self, folder: Path, num_threads: int, isa: str | None, max_tokens: int) -> None:
        checkpoint = Checkpoint.open(folder)
        self.config: ModelConfig = read_config(checkpoint.config)
        self.max_tokens = max_tokens
        self.isa = choose_target(isa)
        specs = expected_tensors(self.config)
        checkpoint.validate(specs)
        c = self.config
        self.files = FileExperts(checkpoint, expert_prefixes(c))
        self._store = load(checkpoint, [spec for spec in specs if not expert_of(spec.name)])
        self._store.stream(self.files.described())
        self.model = load_model(c, self._store)
        self.cache = LatentCache(c.num_layers, -(-max_tokens // PAGE_TOKENS), c.latent_width)
        self.pool = native.Pool(worker_cpus(num_threads))

    @property
    def expert_bytes(self) -> int:
        """Of all routed experts, as they lie in slots."""
        return bytes_of_experts(self.files, self.config.num_moe_layers)

    @property
    def source(self) -> ExpertSource:
        """Where the experts come from."""
        return self.files

    def devices(self, count: int, capacity: int, cap: float | None) -> Sequence[Device]:
        """Of `capacity` bytes each, with links of `cap` bytes/s."""
        return [HostDevice(capacity, name=f"host{n}", cap=cap) for n in range(count)]

    def programs(self, devices: Sequence[Device]) -> Sequence[Programs]:
        """The CPU's, whatever the device."""
        return [HostPrograms(self.model, self.cache, self.pool, self.isa)] * len(devices)

    def close(self) -> None:
        """Closes the files and lets go of the weights."""
        self.files.close()
        self._store.close()


class Trialled(Protocol):
    """A model that trials stream: this machine's, from its disk, or a GPU's, from memory."""

    config: ModelConfig
    max_tokens: int
    cache: LatentCache

    @property
    def isa(self) -> str:
        """What computes it."""
        ...

    @property
    def expert_bytes(self) -> int: ...

    @property
    def source(self) -> ExpertSource: ...

    def devices(self, count: int, capacity: int, cap: float | None) -> Sequence[Device]: ...

    def programs(self, devices: Sequence[Device]) -> Sequence[Programs]: ...

    def close(self) -> None: ...


def bytes_of_experts(source: ExpertSource, num_layers: int) -> int:
    """Of all layers, as they lie in slots."""
    layers = [source.experts(n) for n in range(num_layers)]
    return sum(e.num_experts * part.blob.shape[1] for e in layers for part in e.parts)


class _Switch:
    """Experts from `source`; while `is_off`, nothing moves, and slots keep what they have.

    What lies there stays what it is: read a few bytes off its place, it would be no weights, but values that soon make
    all activations NaN, and a router that then chooses the same few experts for every token.
    """

    def __init__(self, source: ExpertSource) -> None:
        self.is_off = False
        self._source = source
        self._lying: dict[int, list[Bytes]] = {}  # by slot: what came there last, expert by expert

    def experts(self, layer: int) -> Experts:
        return self._source.experts(layer)

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        return None

    def blobs(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        return None if self.is_off else self._source.blobs(layer, first, count)

    def views(self, layer: int, first: int, count: int, slot: Bytes) -> list[Bytes]:
        views = self._source.views(layer, first, count, slot)
        if self._source.blobs(layer, first, count) is not None:  # these lie the same in every slot
            return views
        lying = self._lying.get(id(slot), [])
        if self.is_off:
            return [*lying[:count], *views[len(lying) :]]
        self._lying[id(slot)] = [*views, *lying[count:]]
        return views

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        return () if self.is_off else self._source.steps(layer, first, count, slot)


class StreamTrial:
    """One way of streaming a model: so many devices, each with a ring and, if wished, a link of `cap` bytes/s."""

    def __init__(self, model: Trialled, shape: Shape, *, num_devices: int = 1, cap: float | None = None) -> None:
        self._model = model
        self._source = _Switch(model.source)
        self._open = ExitStack()
        experts = model.source.experts(0)
        slot_bytes = shape.group_experts * sum(part.blob.shape[1] for part in experts.parts)
        capacity = shape.num_slots * (slot_bytes + SPARE_BYTES)
        devices = model.devices(num_devices, capacity, cap)
        for device in devices:
            self._open.callback(device.close)
        programs = model.programs(devices)
        self.pipeline = Pipeline(model.config, model.cache, self._source, devices, programs, model.max_tokens, shape)
        self._open.callback(self.pipeline.close)

    def wall_s(self, num_tokens: int) -> float:
        """Seconds for a prompt of that many random tokens, whole; spans and loaded bytes are the pipeline's then."""
        config = self._model.config
        ids = np.random.default_rng(num_tokens).integers(0, config.vocab, num_tokens).astype(np.int32)
        table = self._model.cache.new_table()
        table.reserve(num_tokens)
        try:
            start_s = time.perf_counter()
            self.pipeline.forward(ids, [Segment(table, 0, num_tokens)])
            return time.perf_counter() - start_s
        finally:
            table.rewind(0)

    def transfer_s(self) -> float:
        """Seconds in which the experts go through the ring with nothing computed."""
        start_s = time.perf_counter()
        self.pipeline.transfer()
        return time.perf_counter() - start_s

    def compute_s(self, num_tokens: int) -> float:
        """Seconds of the prompt's compute with nothing loaded: experts are what lies in the slots."""
        self._source.is_off = True
        try:
            return self.wall_s(num_tokens)
        finally:
            self._source.is_off = False

    def close(self) -> None:
        """Gives everything back but the model."""
        self._open.close()


def event_us(model: Trialled, count: int = 2000) -> float:
    """Microseconds for what each group costs beside its work: two events recorded and waited for, on two streams."""
    (device,) = model.devices(1, SPARE_BYTES, None)
    loads, computes = device.new_stream("load"), device.new_stream("compute")
    ready, done = device.new_event(), device.new_event()
    try:
        times = []
        for _ in range(count):
            start_s = time.perf_counter()
            loads.record(ready)
            computes.wait(ready)
            computes.record(done)
            done.wait(1.0)
            times.append(time.perf_counter() - start_s)
        return 1e6 * median(times)
    finally:
        device.close()

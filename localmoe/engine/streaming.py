"""Prompts through the stream-loading pipeline on host devices, and its parts alone, for those who measure it."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

from localmoe import _native as native
from localmoe.devices.device import Bytes, Step
from localmoe.devices.host import HostDevice
from localmoe.hardware.placement import worker_cpus
from localmoe.hub.checkpoint import Checkpoint
from localmoe.kernels.ops import Segment
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.decoder import load_model
from localmoe.model.network import choose_target
from localmoe.model.tensors import expected_tensors, expert_prefixes
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_source import FileExperts
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
        layers = [self.files.experts(n) for n in range(self.config.num_moe_layers)]
        return sum(e.num_experts * part.blob.shape[1] for e in layers for part in e.parts)

    def close(self) -> None:
        """Closes the files and lets go of the weights."""
        self.files.close()
        self._store.close()


class _Switch:
    """Experts from files; while `is_off`, nothing moves, and slots keep what they have."""

    def __init__(self, files: FileExperts) -> None:
        self.is_off = False
        self._files = files

    def experts(self, layer: int) -> Experts:
        return self._files.experts(layer)

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        return None

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        return () if self.is_off else self._files.steps(layer, first, count, slot)


class StreamTrial:
    """One way of streaming a model: so many devices, each with a ring and, if wished, a link of `cap` bytes/s."""

    def __init__(self, model: StreamedModel, shape: Shape, *, num_devices: int = 1, cap: float | None = None) -> None:
        self._model = model
        self._source = _Switch(model.files)
        self._open = ExitStack()
        experts = model.files.experts(0)
        slot_bytes = shape.group_experts * sum(part.blob.shape[1] for part in experts.parts)
        capacity = shape.num_slots * (slot_bytes + SPARE_BYTES)
        devices = [HostDevice(capacity, name=f"host{n}", cap=cap) for n in range(num_devices)]
        for device in devices:
            self._open.callback(device.close)
        self.pipeline = Pipeline(
            model.model, model.cache, self._source, devices, model.pool, model.max_tokens, shape, target=model.isa
        )
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


def event_us(count: int = 2000) -> float:
    """Microseconds for what each group costs beside its work: two events recorded and waited for, on two streams."""
    device = HostDevice(SPARE_BYTES)
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

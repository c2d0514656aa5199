"""GPUs for those who measure them: a model whose experts are streamed from memory, kernels, and copies."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from localmoe.devices.device import Device, Stream
from localmoe.engine.gpu_devices import CudaGpus, Gpus
from localmoe.engine.streaming import PAGE_TOKENS, bytes_of_experts
from localmoe.errors import NotReadyError
from localmoe.hardware import Gpu, Machine
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.decoder import load_model
from localmoe.model.programs import Programs
from localmoe.model.tensors import expected_tensors, expert_prefixes
from localmoe.weights.arena import Arena
from localmoe.weights.expert_source import ExpertSource, MemoryExperts
from localmoe.weights.load import load
from localmoe.weights.page_lock import PageLock

if TYPE_CHECKING:
    from localmoe.kernels.gpu.preempted import Preempted
    from localmoe.kernels.gpu.timed import KernelTime

COPY_BYTES = 1 << 29
NUM_COPIES = 7
PATIENCE_S = 60.0


def require_gpu(machine: Machine, gpus: Gpus | None = None) -> None:
    """NotReadyError with the reason where nothing can run on a GPU."""
    if not machine.gpus:
        why = machine.why_unknown("GPU") or "none was found"
        raise NotReadyError(f"there is no GPU to measure: {why}", "without --device cuda the CPU is measured")
    if why := (gpus or CudaGpus()).why_not():
        raise NotReadyError(f"the GPU cannot be measured: {why}", "without --device cuda the CPU is measured")


class GpuModel:
    """streaming.Trialled: everything is in memory, page-locked; each GPU has what every token needs."""

    def __init__(self, folder: Path, found: Sequence[Gpu], max_tokens: int, gpus: Gpus | None = None) -> None:
        checkpoint = Checkpoint.open(folder)
        self.config: ModelConfig = read_config(checkpoint.config)
        self.max_tokens = max_tokens
        self.isa = found[0].name
        self._gpus, self._found = gpus or CudaGpus(), found
        specs = expected_tensors(self.config)
        checkpoint.validate(specs)
        self._store = load(checkpoint, specs)
        self._open = ExitStack()
        self._open.callback(self._store.close)
        self.model = load_model(self.config, self._store)
        c = self.config
        self.cache = LatentCache(c.num_layers, -(-max_tokens // PAGE_TOKENS), c.latent_width, "bf16")
        (locker,) = self._gpus.open(found[:1])
        self._open.callback(locker.close)
        if lock := self._gpus.page_lock(locker):
            self._store.lock_pages(*lock)

    @property
    def notes(self) -> tuple[str, ...]:
        """On what memory the weights lie."""
        return self._store.notes

    @property
    def num_gpus(self) -> int:
        """Those that there are."""
        return len(self._found)

    @property
    def source(self) -> ExpertSource:
        """As Trialled says."""
        return MemoryExperts([self._store.experts(prefix) for prefix in expert_prefixes(self.config)])

    @property
    def expert_bytes(self) -> int:
        """As Trialled says."""
        return bytes_of_experts(self.source, self.config.num_moe_layers)

    def devices(self, count: int, capacity: int, cap: float | None) -> Sequence[Device]:
        """The first `count` GPUs, with all their memory and their own links."""
        del capacity, cap
        return self._gpus.open(self._found[:count])

    def programs(self, devices: Sequence[Device]) -> Sequence[Programs]:
        """As Trialled says."""
        return [self._gpus.programs(device, self.model, self.cache) for device in devices]

    def close(self) -> None:
        """Lets go of the weights."""
        self._open.close()


def kernel_times(gpu: Gpu) -> "Iterator[KernelTime]":
    """Of the kernels at DeepSeek-V3's shapes."""
    from localmoe.devices.cuda import CudaDevice
    from localmoe.kernels.gpu.timed import kernel_times as timed

    (device,) = CudaGpus().open([gpu])
    assert isinstance(device, CudaDevice)
    try:
        yield from timed(device.torch_name)
    finally:
        device.close()


def preempted(gpu: Gpu) -> "Preempted":
    """What a step's kernels wait for beside a prompt's product."""
    from localmoe.devices.cuda import CudaDevice
    from localmoe.kernels.gpu.preempted import preempted as measured

    (device,) = CudaGpus().open([gpu])
    assert isinstance(device, CudaDevice)
    try:
        return measured(device)
    finally:
        device.close()


def locked_copy_rate(gpu: Gpu, gpus: Gpus | None = None) -> tuple[float, str]:
    """Bytes/s of copies from memory that was page-locked as weights are, by the GPU's clock; and how that went."""
    maker = gpus or CudaGpus()
    (device,) = maker.open([gpu])
    arena = Arena(COPY_BYTES)
    source = arena.view(0, COPY_BYTES)
    source[:] = 1
    lock = maker.page_lock(device)
    locked = PageLock(arena.address, arena.page_bytes, *lock) if lock else None
    memory, stream = device.alloc(COPY_BYTES), device.new_stream("copies")
    try:
        times = [_copy_s(device, stream, memory.view, source) for _ in range(NUM_COPIES)]
        return COPY_BYTES / median(times), locked.note if locked else ""
    finally:
        stream.reset()
        memory.free()
        if locked:
            locked.release()
        device.close()


def _copy_s(device: Device, stream: Stream, target: np.ndarray, source: np.ndarray) -> float:
    begun, ended = device.new_event(), device.new_event()
    stream.record(begun)
    stream.copy_async(target, source)
    stream.record(ended)
    ended.wait(PATIENCE_S)
    assert begun.reached_s is not None and ended.reached_s is not None, "a copy did not end"
    return ended.reached_s - begun.reached_s

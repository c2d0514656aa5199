"""GPUs and their links, by torch: the only room of bench that imports it, and only where the probe found a GPU.

Not proven on hardware: it was written and tested without a GPU, against a stand-in for the part of torch that it uses.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from localmoe.bench.rows import Listener
from localmoe.engine.measured import MeasuredGpu
from localmoe.hardware import Gpu, Machine

COPY_BYTES = 256 << 20
NEEDED_BYTES = 2 << 30  # of a GPU's memory that must be free
NUM_COPIES, NUM_CALLS = 4, 200
NUM_RUNS = 5
GEMM = 4096, 7168, 2048  # tokens, columns and rows: one expert's gate, many tokens
ATTENTION = 1, 32, 4096, 128  # prompts, heads, tokens, elements of a head
HIDDEN = 7168
LAYER_LAUNCHES = 20  # kernels of a layer without its routed experts


def measure_gpus(
    machine: Machine, listener: Listener, torch: Any = None
) -> tuple[tuple[MeasuredGpu, ...], float | None]:
    """Figures of each of the machine's GPUs, in its order, and bytes/s from pinned memory to all of them at once.

    What cannot be measured is None, and `listener` is told why. `torch` may be a stand-in.
    """
    try:
        torch = torch or _import_torch()
    except (ImportError, OSError) as error:
        listener.warn(f"GPUs are not measured: torch cannot be imported ({error})")
        return (), None
    if not torch.cuda.is_available():
        listener.warn("GPUs are not measured: this torch sees none")
        return (), None
    devices = _devices(machine.gpus, torch)
    found = tuple(_measured(gpu, device, listener, torch) for gpu, device in zip(machine.gpus, devices, strict=True))
    used = [device for device, one in zip(devices, found, strict=True) if device is not None and one.h2d_bytes_s]
    found = tuple(_with_peer(one, device, used, listener, torch) for one, device in zip(found, devices, strict=True))
    return found, _together(used, listener, torch) if len(used) > 1 else None


def _import_torch() -> Any:
    import torch

    return torch


def _devices(gpus: Sequence[Gpu], torch: Any) -> list[int | None]:
    """CUDA's number of each GPU: by PCI address, because CUDA counts in another order than the driver; else by name."""
    left = {n: torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())}
    devices: list[int | None] = []
    for gpu in gpus:
        same = [n for n, properties in left.items() if _address(properties) == gpu.pci_address]
        alike = [n for n, p in left.items() if _address(p) is None and p.name == gpu.name]
        device = next(iter(same or alike), None)
        left.pop(device if device is not None else -1, None)
        devices.append(device)
    return devices


def _address(properties: Any) -> str | None:
    """As the driver writes it; None where this torch does not tell."""
    domain, bus, device = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return None if None in (domain, bus, device) else f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _measured(gpu: Gpu, device: int | None, listener: Listener, torch: Any) -> MeasuredGpu:
    """One GPU; what fails leaves the rest out."""
    nothing = MeasuredGpu(gpu.name)
    if device is None:
        listener.warn(f"{gpu.name} is not measured: torch does not see it")
        return nothing
    try:
        if torch.cuda.mem_get_info(device)[0] < NEEDED_BYTES:
            listener.warn(f"{gpu.name} is not measured: less than {NEEDED_BYTES / 1e9:.1f} GB of its memory are free")
            return nothing
        listener.progress(f"GPU {gpu.index}, {gpu.name}: link, memory, matrices, attention, launches")
        with torch.cuda.device(device):
            return _Trial(device, torch).measured(gpu.name)
    except RuntimeError as error:  # torch's own, and CUDA's
        listener.warn(f"{gpu.name} is not measured: {str(error).splitlines()[0] if str(error) else 'it failed'}")
        return nothing


class _Trial:
    """Measures the current device."""

    def __init__(self, device: int, torch: Any) -> None:
        self._torch = torch
        self._on = {"device": f"cuda:{device}"}

    def measured(self, name: str) -> MeasuredGpu:
        """Everything but what takes several GPUs."""
        return MeasuredGpu(
            name=name,
            memory_bytes_s=self._memory(),
            gemm_flop_s=self._fp8_gemm() or self._bf16_gemm(),
            attention_flop_s=self._attention(),
            h2d_bytes_s=self._from_pinned(),
            launch_s=self._launch(),
            event_s=self._event(),
            layer_s=self._layer(),
        )

    def _memory(self) -> float:
        """Bytes/s, read and written."""
        source, target = (self._torch.empty(COPY_BYTES, dtype=self._torch.uint8, **self._on) for _ in range(2))
        return 2 * COPY_BYTES / self._seconds(lambda: target.copy_(source))

    def _from_pinned(self) -> float:
        source = self._torch.empty(COPY_BYTES, dtype=self._torch.uint8, pin_memory=True)
        target = self._torch.empty(COPY_BYTES, dtype=self._torch.uint8, **self._on)
        return COPY_BYTES / self._seconds(lambda: target.copy_(source, non_blocking=True))

    def _bf16_gemm(self) -> float:
        tokens, cols, rows = GEMM
        x, w = self._bf16(tokens, cols), self._bf16(rows, cols)
        return 2.0 * tokens * cols * rows / self._seconds(lambda: self._torch.mm(x, w.t()))

    def _fp8_gemm(self) -> float | None:
        """None where GPU or torch do not multiply FP8."""
        tokens, cols, rows = GEMM
        try:
            kind = self._torch.float8_e4m3fn
            x, w = self._bf16(tokens, cols).to(kind), self._bf16(rows, cols).to(kind)
            one = self._torch.ones((), **self._on)
            seconds = self._seconds(
                lambda: self._torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=self._torch.bfloat16)
            )
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            return None
        return 2.0 * tokens * cols * rows / seconds

    def _attention(self) -> float:
        """Causal: half of the scores count."""
        prompts, heads, tokens, width = ATTENTION
        q, k, v = (self._bf16(*ATTENTION) for _ in range(3))
        attend = self._torch.nn.functional.scaled_dot_product_attention
        seconds = self._seconds(lambda: attend(q, k, v, is_causal=True))
        return 2.0 * prompts * heads * tokens * tokens * width / seconds

    def _launch(self) -> float:
        x = self._torch.ones(1, **self._on)
        return self._wall_s(lambda: x.add_(1))

    def _event(self) -> float:
        """Recorded on one stream, waited for on another."""
        one, other, event = self._torch.cuda.Stream(), self._torch.cuda.Stream(), self._torch.cuda.Event()

        def hand_over() -> None:
            event.record(one)
            other.wait_event(event)

        return self._wall_s(hand_over)

    def _layer(self) -> float:
        """A layer's small kernels, its row to the CPU and back."""
        row, host = self._bf16(HIDDEN), self._torch.empty(HIDDEN, dtype=self._torch.bfloat16, pin_memory=True)
        event = self._torch.cuda.Event()

        def layer() -> None:
            for _ in range(LAYER_LAUNCHES):
                row.add_(1)
            host.copy_(row, non_blocking=True)
            event.record()
            event.synchronize()
            row.copy_(host, non_blocking=True)

        return self._wall_s(layer)

    def _bf16(self, *shape: int) -> Any:
        return self._torch.randn(*shape, dtype=self._torch.bfloat16, **self._on)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Of one call, by the device's own clock: the median of a few runs."""
        self._run_s(call)  # warms up
        return median(self._run_s(call) for _ in range(NUM_RUNS))

    def _run_s(self, call: Callable[[], object]) -> float:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(NUM_COPIES):
            call()
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) / 1e3 / NUM_COPIES, 1e-9)

    def _wall_s(self, call: Callable[[], object]) -> float:
        """Of one call among many, by the CPU's clock."""
        call()
        self._torch.cuda.synchronize()
        start_s = time.perf_counter()
        for _ in range(NUM_CALLS):
            call()
        self._torch.cuda.synchronize()
        return max((time.perf_counter() - start_s) / NUM_CALLS, 1e-9)


def _with_peer(
    one: MeasuredGpu, device: int | None, used: Sequence[int], listener: Listener, torch: Any
) -> MeasuredGpu:
    """With bytes/s to the first other GPU that it writes to directly."""
    if device is None or device not in used:
        return one
    other = next((n for n in used if n != device and torch.cuda.can_device_access_peer(device, n)), None)
    if other is None:
        return one
    listener.progress(f"copies of {one.name} to another GPU")
    try:
        source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{n}") for n in (device, other))
        both = [device, other]
        return replace(one, peer_bytes_s=COPY_BYTES / _all_s(both, lambda: target.copy_(source), torch))
    except RuntimeError as error:
        listener.warn(f"copies between GPUs are not measured: {error}")
        return one


def _together(used: Sequence[int], listener: Listener, torch: Any) -> float | None:
    """Bytes/s from pinned memory to all GPUs at once."""
    listener.progress(f"copies to {len(used)} GPUs at once")
    try:
        pairs = [
            (
                torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True),
                torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{device}"),
            )
            for device in used
        ]

        def copy_all() -> None:
            for source, target in pairs:
                target.copy_(source, non_blocking=True)

        return len(used) * COPY_BYTES / _all_s(used, copy_all, torch)
    except RuntimeError as error:
        listener.warn(f"copies to all GPUs at once are not measured: {error}")
        return None


def _all_s(devices: Sequence[int], call: Callable[[], object], torch: Any) -> float:
    """Seconds of one call, until all of `devices` are done."""

    def wait() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    call()
    wait()
    start_s = time.perf_counter()
    for _ in range(NUM_COPIES):
        call()
    wait()
    return max((time.perf_counter() - start_s) / NUM_COPIES, 1e-9)

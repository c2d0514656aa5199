"""Launches that are compiled at DeepSeek-V3's shapes, run and timed on a GPU, beside what torch's own product reaches.

Not proven on hardware: it was written without a GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from localmoe.kernels.gpu.chips import Chip, chip_of
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.matrix import FP8
from localmoe.kernels.gpu.v3 import CONTEXT, Case, cases

NUM_CALLS, NUM_RUNS = 5, 5
PRODUCT = 4096, 7168, 4096  # tokens, columns and rows of torch's product
COPY_BYTES = 1 << 29
ROWS = ("64", "1024", "4096")  # of the cases that are timed; one token's are all latency


@dataclass(frozen=True)
class KernelTime:
    """Seconds of a case, and the measured rate that bounds it: of arithmetic, or of memory where that takes longer."""

    case: str
    seconds: float
    flops: float
    num_bytes: float
    floor_s: float  # at the card's data sheet
    is_memory_bound: bool
    peak: float  # measured FLOP/s, or bytes/s where memory is the limit

    @property
    def rate(self) -> float:
        """FLOP/s, or bytes/s where memory is the limit."""
        return (self.num_bytes if self.is_memory_bound else self.flops) / self.seconds


def kernel_times(name: str) -> Iterator[KernelTime]:
    """Grouped products of experts, dense products and attention on the torch device `name`."""
    device = torch.device(name)
    chip = chip_of(device)
    memory = 2 * COPY_BYTES / _copy_s(device)
    peaks = {"bf16": _product_rate(device, is_fp8=False)}
    if chip.has_fp8:
        peaks["e4m3"] = _product_rate(device, is_fp8=True)
    for case in timed_cases(chip):
        seconds = _seconds(device, on_device(case.launch(chip), device).run)
        peak = peaks[case.matrix_type or "bf16"]
        is_memory = case.num_bytes / memory > case.flops / peak
        floor_s = case.floor_s(chip)
        yield KernelTime(
            case.name, seconds, case.flops, case.num_bytes, floor_s, is_memory, memory if is_memory else peak
        )


def timed_cases(chip: Chip) -> list[Case]:
    """Of v3's: in the form that the chip computes FP8 weights in, and one in BF16."""
    form = "fp8" if chip.has_fp8 else "decoded"
    return [case for case in cases() if case.runs_on(chip) and _is_timed(case, form)]


def _is_timed(case: Case, form: str) -> bool:
    if case.kernel in ("prefill_attention", "decode_attention"):
        return True
    if case.kernel == "gate_up" and case.case == "bf16-1024":
        return True
    is_product = case.kernel in ("gate_up", "down", "linear") and not case.case.startswith("kv_a")
    return is_product and f"{form}-" in case.case and case.case.split("-")[-1] in ROWS


def on_device(launch: Launch, device: torch.device) -> Launch:
    """The same with memory, and with indices that mean something."""
    args = {name: _filled(name, a, device) if isinstance(a, Tensor) else a for name, a in launch.args.items()}
    if "offsets" in args:  # as many rows for each expert
        offsets, out = args["offsets"], args["out"]
        assert isinstance(offsets, Tensor) and isinstance(out, Tensor)
        offsets.copy_(torch.arange(len(offsets), device=device) * (len(out) // (len(offsets) - 1)))
    return replace(launch, args=args)


def _filled(name: str, like: Tensor, device: torch.device) -> Tensor:
    found = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
    if name == "lengths":
        return found.fill_(CONTEXT)
    if like.dtype == torch.int32:  # rows, or pages: each once
        return found.copy_(torch.arange(like.numel(), device=device).view(like.shape))
    if like.dtype in (FP8, torch.uint8):
        found.view(torch.uint8).random_(0, 0x7F)  # every code but the negative ones and NaN
        return found
    return found.normal_(std=0.05) if like.dtype == torch.bfloat16 else found.fill_(1.0)


def _product_rate(device: torch.device, *, is_fp8: bool) -> float:
    """FLOP/s of torch's own product."""
    tokens, cols, rows = PRODUCT
    x, w = (torch.randn(n, cols, dtype=torch.bfloat16, device=device) for n in (tokens, rows))
    one = torch.ones((), device=device)
    if is_fp8:
        a, b = x.to(FP8), w.to(FP8)

        def product() -> None:
            torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    else:

        def product() -> None:
            torch.mm(x, w.t())

    return 2.0 * tokens * cols * rows / _seconds(device, product)


def _copy_s(device: torch.device) -> float:
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    return _seconds(device, lambda: target.copy_(source))


def _seconds(device: torch.device, call: Callable[[], object]) -> float:
    """Of one call, by the GPU's clock."""
    with torch.cuda.device(device):
        call()
        return median(_run_s(call) for _ in range(NUM_RUNS))


def _run_s(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(NUM_CALLS):
        call()
    end.record()
    end.synchronize()
    return max(float(start.elapsed_time(end)) / 1e3 / NUM_CALLS, 1e-9)

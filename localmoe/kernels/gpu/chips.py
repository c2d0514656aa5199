"""What an NVIDIA GPU is to a kernel: its compute capability and what follows from it."""

from dataclasses import dataclass

import torch

from localmoe.errors import NotReadyError

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """Limits of one compute capability (CUDA C++ programming guide, "Technical specifications per compute capability").

    The three rates are those of the card named in `card`; they are used for roofline floors only.
    """

    capability: int  # 10 * major + minor
    card: str
    has_fp8: bool  # matrix units that multiply FP8 E4M3
    shared_bytes: int  # per block, opted in
    shared_bytes_sm: int  # per multiprocessor
    warps_sm: int  # resident at most
    blocks_sm: int  # likewise
    num_sms: int
    bytes_s: float  # memory bandwidth
    bf16_flops: float  # dense, FP32 accumulation
    fp8_flops: float  # dense, FP32 accumulation; that of BF16 where there are no FP8 units

    @property
    def name(self) -> str:
        """As compilers call it, such as "sm_120"."""
        return f"sm_{self.capability}"


CHIPS = {
    chip.capability: chip
    for chip in (
        Chip(80, "A100 PCIe 80 GB", False, 163 * KIB, 164 * KIB, 64, 32, 108, 1.94e12, 312e12, 312e12),
        Chip(86, "RTX 3090", False, 99 * KIB, 100 * KIB, 48, 16, 82, 0.94e12, 71e12, 71e12),
        Chip(89, "RTX 4090", True, 99 * KIB, 100 * KIB, 48, 24, 128, 1.01e12, 165e12, 330e12),
        Chip(90, "H200", True, 227 * KIB, 228 * KIB, 64, 32, 132, 4.8e12, 989e12, 1979e12),
        Chip(120, "RTX 5090", True, 99 * KIB, 100 * KIB, 48, 24, 170, 1.79e12, 209e12, 419e12),
    )
}


def chip_for(major: int, minor: int) -> Chip:
    """The newest known chip of the same major version that is not newer. NotReadyError when there is none."""
    fitting = [c for c in CHIPS if c // 10 == major and c % 10 <= minor]
    if not fitting:
        known = ", ".join(chip.name for chip in CHIPS.values())
        raise NotReadyError(
            f"The GPU kernels do not know compute capability {major}.{minor}.", f"they run on {known}; use the CPU plan"
        )
    return CHIPS[max(fitting)]


def chip_of(device: torch.device) -> Chip:
    """The chip of a CUDA device."""
    return chip_for(*torch.cuda.get_device_capability(device))

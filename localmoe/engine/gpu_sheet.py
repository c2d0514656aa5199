"""Data sheets of NVIDIA GPUs: memory and dense tensor-core peaks with FP32 sums, by name or compute capability.

Only GPUs that nobody has measured are judged by it.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sheet:
    """One GPU. FLOP/s are dense and sum in FP32."""

    name: str
    vram_bytes: int
    memory_bytes_s: float
    bf16_flop_s: float  # FP16's where there is no BF16
    fp8_flop_s: float | None  # None: it decodes FP8 and multiplies BF16

    @property
    def gemm_flop_s(self) -> float:
        """Of FP8 weights."""
        return self.fp8_flop_s or self.bf16_flop_s


def _sheet(name: str, vram_gib: int, memory_gb_s: float, bf16_tflop_s: float, fp8_tflop_s: float | None) -> Sheet:
    fp8 = None if fp8_tflop_s is None else fp8_tflop_s * 1e12
    return Sheet(name, vram_gib << 30, memory_gb_s * 1e9, bf16_tflop_s * 1e12, fp8)


_BY_NAME = (
    (r"RTX PRO 6000.*Max-Q", _sheet("RTX PRO 6000 Max-Q", 96, 1792, 438, 877)),
    (r"RTX PRO 6000", _sheet("RTX PRO 6000", 96, 1792, 504, 1007)),
    (r"RTX 6000 Ada", _sheet("RTX 6000 Ada", 48, 960, 364, 729)),
    (r"RTX A6000", _sheet("RTX A6000", 48, 768, 155, None)),
    (r"RTX 5090", _sheet("RTX 5090", 32, 1792, 209.5, 419)),
    (r"RTX 5080", _sheet("RTX 5080", 16, 960, 112.6, 225)),
    (r"RTX 4090", _sheet("RTX 4090", 24, 1008, 165.2, 330.3)),
    (r"RTX 4080", _sheet("RTX 4080", 16, 717, 97.5, 195)),
    (r"RTX 3090 Ti", _sheet("RTX 3090 Ti", 24, 1008, 80, None)),
    (r"RTX 3090", _sheet("RTX 3090", 24, 936, 71, None)),
    (r"\bH200\b", _sheet("H200", 141, 4800, 989, 1979)),
    (r"H100.*NVL", _sheet("H100 NVL", 94, 3900, 835, 1671)),
    (r"H100.*PCIe", _sheet("H100 PCIe", 80, 2000, 756, 1513)),
    (r"\bH[18]00\b", _sheet("H100", 80, 3350, 989, 1979)),
    (r"\bA100\b.*80", _sheet("A100 80 GB", 80, 1935, 312, None)),
    (r"\bA100\b", _sheet("A100 40 GB", 40, 1555, 312, None)),
    (r"L40S", _sheet("L40S", 48, 864, 362, 733)),
    (r"\bA10\b", _sheet("A10", 24, 600, 125, None)),
)
# A card of the same generation that promises little: a name that is not above may belong to any of them.
_BY_CAPABILITY = (
    ((12, 0), _sheet("RTX 5060 Ti", 16, 448, 47, 95)),
    ((10, 0), _sheet("B200", 180, 8000, 2250, 4500)),
    ((9, 0), _sheet("H100 PCIe", 80, 2000, 756, 1513)),
    ((8, 9), _sheet("RTX 4060 Ti", 8, 288, 44, 88)),
    ((8, 6), _sheet("RTX 3060", 12, 360, 25, None)),
    ((8, 0), _sheet("A100 40 GB", 40, 1555, 312, None)),
    ((7, 5), _sheet("RTX 2060", 6, 336, 26, None)),
)
_LEAST = _sheet("RTX 2060", 6, 336, 26, None)


def sheet_of(name: str, capability: str | None) -> tuple[Sheet, str]:
    """A GPU's data sheet, and a sentence about where it is from."""
    for pattern, sheet in () if "laptop" in name.lower() else _BY_NAME:
        if re.search(pattern, name, re.IGNORECASE):
            return sheet, f"the data sheet of the {sheet.name}"
    if (number := _number(capability)) is not None:
        for least, sheet in _BY_CAPABILITY:
            if number >= least:
                return sheet, f"a {sheet.name}'s data sheet, for compute capability {capability} under an unknown name"
    return _LEAST, f"a {_LEAST.name}'s data sheet, for want of anything known about this GPU"


def _number(capability: str | None) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", capability or "")
    return (int(found[1]), int(found[2])) if found else None

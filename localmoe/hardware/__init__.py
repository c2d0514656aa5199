"""What this machine is: CPU, memory, limits, disks, GPUs. Read from the kernel's files; never raises, never guesses.

Knows nothing of models or settings. What cannot be found out is None, and `Machine.unknown` says why.
"""

from localmoe.hardware.cores import physical_cores
from localmoe.hardware.gpu import Gpu, GpuPair, PcieLink, PciGpu
from localmoe.hardware.machine import (
    Cache,
    Cpu,
    Dimm,
    Dimms,
    Disk,
    HugePool,
    Limits,
    Machine,
    Memory,
    Node,
)
from localmoe.hardware.memory import available_memory
from localmoe.hardware.survey import probe

__all__ = [
    "Cache",
    "Cpu",
    "Dimm",
    "Dimms",
    "Disk",
    "Gpu",
    "GpuPair",
    "HugePool",
    "Limits",
    "Machine",
    "Memory",
    "Node",
    "PciGpu",
    "PcieLink",
    "available_memory",
    "physical_cores",
    "probe",
]

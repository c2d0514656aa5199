"""What this machine is: CPU, memory, limits, disks, GPUs. Read from the kernel's files; never raises, never guesses.

Knows nothing of models or settings. What cannot be found out is None, and `Machine.unknown` says why. Names are
imported when they are first used: an engine that only counts cores is spared the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localmoe.hardware.cores import physical_cores
    from localmoe.hardware.gpu import Gpu, GpuPair, PcieLink, PciGpu
    from localmoe.hardware.headroom import available_memory
    from localmoe.hardware.machine import Cache, Cpu, Dimm, Dimms, Disk, HugePool, Limits, Machine, Memory
    from localmoe.hardware.nodes import Node
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

_HOMES = {
    "Gpu": "gpu",
    "GpuPair": "gpu",
    "Node": "nodes",
    "PciGpu": "gpu",
    "PcieLink": "gpu",
    "available_memory": "headroom",
    "physical_cores": "cores",
    "probe": "survey",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'machine')}"), name)

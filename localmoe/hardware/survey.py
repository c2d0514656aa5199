"""One question: what this machine is."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from localmoe.hardware import host, pci
from localmoe.hardware.cores import Processor, processors
from localmoe.hardware.cpu import read_cpu
from localmoe.hardware.disk import read_disk
from localmoe.hardware.gpu import PciGpu
from localmoe.hardware.gpu_survey import survey_gpus
from localmoe.hardware.limits import read_limits
from localmoe.hardware.machine import Cpu, Limits, Machine, Memory
from localmoe.hardware.memory import read_memory
from localmoe.hardware.nodes import Node, read_nodes
from localmoe.hardware.nvml import Survey
from localmoe.hardware.reasons import reasons

T = TypeVar("T")

_NO_CPU = Cpu(None, None, None, None, (), ())
_NO_MEMORY = Memory(None, None, None, None, None, None)
_NO_LIMITS = Limits((), 1, None, None)


def probe(
    root: str | Path = "/", paths: Mapping[str, Path] | None = None, nvml: Any = None, *, asks_driver: bool = True
) -> Machine:
    """What this machine is; `paths` are those whose disks matter, by purpose. Never raises.

    The GPUs' driver may take a second to answer: where it is not asked, GPUs are only those that the bus shows.
    With another `root`, a recorded tree is read instead of this machine. GPUs are then asked only of `nvml`, which
    stands for the module pynvml; and the room on disks is that of the disk with the tree.
    """
    tree, broken = str(root), dict[str, str]()

    def part(what: str, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - a kernel's odd file must not hide the rest; it is reported
            broken[what] = f"{type(error).__name__}: {error}"
            return default

    found = part("CPU", lambda: processors(tree), list[Processor]())
    nodes = part("NUMA", lambda: read_nodes(tree), tuple[Node, ...]())
    on_bus = part("PCI", lambda: pci.read_pci_gpus(tree), tuple[PciGpu, ...]())
    gpus = part("GPU", lambda: survey_gpus(tree, nvml, on_bus, nodes, asks_driver=asks_driver), Survey())
    disks = [read_disk(tree, purpose, path) for purpose, path in (paths or {}).items()]
    machine = Machine(
        cpu=part("CPU", lambda: read_cpu(tree, found), _NO_CPU),
        nodes=nodes,
        memory=part("DRAM", lambda: read_memory(tree), _NO_MEMORY),
        limits=part("limits", lambda: read_limits(tree), _NO_LIMITS),
        disks=tuple(disk for disk, _ in disks),
        gpus=gpus.gpus,
        gpu_driver=gpus.driver,
        container=part("container", lambda: host.container(tree), None),
        hypervisor=part("hypervisor", lambda: host.hypervisor(tree, found), None),
        unknown=(),
        gpu_cuda=gpus.cuda,
        gpu_pairs=gpus.pairs,
        pci_gpus=on_bus,
    )
    unknown = part("reasons", lambda: reasons(tree, machine), dict[str, str]()) | gpus.unknown
    for _, why in disks:
        unknown |= why
    return replace(machine, unknown=tuple(sorted((unknown | broken).items())))

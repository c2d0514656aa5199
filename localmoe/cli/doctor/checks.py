"""All checks of a machine, top to bottom."""

from localmoe.cli.doctor.check import Check
from localmoe.cli.doctor.disks import check_disk
from localmoe.cli.doctor.gpus import check_gpus
from localmoe.cli.doctor.limits import check_maps, check_memlock
from localmoe.cli.doctor.memory import check_balancing, check_dimms, check_dram, check_huge_pages, check_numa
from localmoe.cli.doctor.processors import check_cores, check_cpu, check_isa
from localmoe.engine.measured import Measured
from localmoe.hardware import Disk, Machine


def check_machine(machine: Machine, isa: str | None = None, measured: Measured | None = None) -> tuple[Check, ...]:
    """Every finding; `isa` is the kernel target that the settings ask for, `measured` what was measured here."""
    balancing = check_balancing(machine)
    return (
        check_cpu(machine),
        check_isa(machine, isa),
        check_cores(machine),
        check_numa(machine),
        *((balancing,) if balancing else ()),
        check_dram(machine, measured),
        check_dimms(machine),
        check_huge_pages(machine),
        check_memlock(machine),
        check_maps(machine),
        *(check_disk(machine, disk, measured) for disk in _disks(machine)),
        *check_gpus(machine, measured),
    )


def _disks(machine: Machine) -> list[Disk]:
    """Each disk once: paths with the same room on the same filesystem lie on one."""
    found = {(disk.filesystem, disk.kind, disk.total_bytes, disk.free_bytes): disk for disk in reversed(machine.disks)}
    return list(reversed(found.values()))

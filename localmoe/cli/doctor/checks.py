"""All checks of a machine, top to bottom."""

from collections.abc import Iterator

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
    return (*check_host(machine, isa, measured), *check_devices(machine, measured))


def check_host(machine: Machine, isa: str | None = None, measured: Measured | None = None) -> Iterator[Check]:
    """What the GPUs' driver has no part in."""
    yield check_cpu(machine)
    yield check_isa(machine, isa)
    yield check_cores(machine)
    yield check_numa(machine)
    if balancing := check_balancing(machine):
        yield balancing
    yield check_dram(machine, measured)
    yield check_dimms(machine)
    yield check_huge_pages(machine)
    yield check_maps(machine)
    for disk in _disks(machine):
        yield check_disk(machine, disk, measured)


def check_devices(machine: Machine, measured: Measured | None = None) -> Iterator[Check]:
    """What GPUs are and need."""
    yield check_memlock(machine)
    yield from check_gpus(machine, measured)


def _disks(machine: Machine) -> list[Disk]:
    """Each disk once: paths with the same room on the same filesystem lie on one."""
    found = {(disk.filesystem, disk.kind, disk.total_bytes, disk.free_bytes): disk for disk in reversed(machine.disks)}
    return list(reversed(found.values()))

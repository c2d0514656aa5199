"""CPUs and the physical cores behind them."""

import math
from collections.abc import Iterable

from localmoe.hardware import files
from localmoe.hardware.cgroup import cpu_quota


def physical_cores(root: str = "/") -> int:
    """Cores that this process may use: its affinity mask without SMT siblings, within its CPU quota; at least 1."""
    cores = max(1, count_cores(root, allowed_cpus(root)))
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def allowed_cpus(root: str) -> tuple[int, ...]:
    """CPUs that this process may run on; all of them when its mask cannot be read."""
    status = files.pairs(files.read(root, "/proc/self/status"), ":")
    return files.to_list(status.get("Cpus_allowed_list")) or online_cpus(root)


def online_cpus(root: str) -> tuple[int, ...]:
    """CPUs that the kernel schedules on."""
    listed = files.to_list(files.read(root, "/sys/devices/system/cpu/online"))
    return listed or tuple(range(len(processors(root))))


def count_cores(root: str, cpus: Iterable[int]) -> int:
    """Distinct physical cores behind `cpus`; a CPU of unknown core counts as one."""
    by_number = {files.to_int(p.get("processor")): p for p in processors(root)}
    return len({_core_of(root, cpu, by_number.get(cpu, {})) for cpu in cpus})


def count_sockets(root: str, cpus: Iterable[int]) -> int | None:
    """Distinct packages behind `cpus`; None when the kernel does not say."""
    packages = {files.read_line(root, f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id") for cpu in cpus}
    known = (packages | {p.get("physical id") for p in processors(root)}) if packages <= {None} else packages
    return len(known - {None}) or None


def processors(root: str) -> list[dict[str, str]]:
    """/proc/cpuinfo, one dict a CPU."""
    blocks = (files.read(root, "/proc/cpuinfo") or "").strip().split("\n\n")
    return [fields for block in blocks if "processor" in (fields := files.pairs(block, ":"))]


def _core_of(root: str, cpu: int, processor: dict[str, str]) -> object:
    topology = f"/sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        if siblings := files.to_list(files.read(root, f"{topology}/{name}")):
            return siblings
    if "core id" in processor:
        return processor.get("physical id"), processor["core id"]
    return cpu

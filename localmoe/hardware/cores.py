"""CPUs and the physical cores behind them."""

import math
import re
from collections.abc import Iterable, Sequence

from localmoe.hardware import files
from localmoe.hardware.cgroup import cpu_quota

CPUS = "/sys/devices/system/cpu"
_FOLDER = re.compile(r"cpu(\d{1,5})")

Processor = dict[str, str]


def physical_cores(root: str = "/") -> int:
    """Cores that this process may use: its affinity mask without SMT siblings, within its CPU quota; at least 1."""
    return usable_cores(root, allowed_cpus(root))


def usable_cores(root: str, cpus: Sequence[int]) -> int:
    """Cores behind `cpus`, within the CPU quota; a CPU of unknown core counts as one."""
    found, quota = cores_of(root, cpus), cpu_quota(root)
    cores = max(1, len(set(found.values())) + len(set(cpus)) - len(found))
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def allowed_cpus(root: str) -> tuple[int, ...]:
    """CPUs that this process may run on; all of them when its mask cannot be read.

    The mask keeps CPUs that are offline, and those that the board could have and has not.
    """
    online = online_cpus(root)
    mask = affinity(root)
    return tuple(cpu for cpu in mask if cpu in set(online)) or online or mask


def affinity(root: str) -> tuple[int, ...]:
    """The mask as the kernel keeps it; empty when it cannot be read."""
    return files.to_list(files.pairs(files.read(root, "/proc/self/status"), ":").get("Cpus_allowed_list"))


def online_cpus(root: str) -> tuple[int, ...]:
    """CPUs that the kernel schedules on; empty when it does not tell."""
    folders = cpu_folders(root)
    listed = files.to_list(files.read(root, f"{CPUS}/online"))
    there = tuple(cpu for cpu in listed if cpu in folders) or (() if folders else listed)
    return there or numbers_of(processors(root)) or tuple(sorted(folders))


def offline_cpus(root: str) -> tuple[int, ...]:
    """CPUs that are present and switched off."""
    online = files.to_list(files.read(root, f"{CPUS}/online"))
    folders = cpu_folders(root)
    present = files.to_list(files.read(root, f"{CPUS}/present"))
    return tuple(cpu for cpu in present if cpu in folders and cpu not in set(online)) if online else ()


def cpu_folders(root: str) -> set[int]:
    """CPUs of which the kernel shows anything; offline ones too."""
    return {int(found[1]) for name in files.names(root, CPUS) if (found := _FOLDER.fullmatch(name))}


def cores_of(root: str, cpus: Iterable[int]) -> dict[int, object]:
    """A key of the physical core of each of `cpus` whose core is known; siblings share it."""
    wanted, folders = set(cpus), cpu_folders(root)
    keys: dict[int, object] = {cpu: siblings for cpu in wanted & folders if (siblings := _siblings(root, cpu))}
    if len(keys) == len(wanted):
        return keys
    for processor in processors(root):
        cpu = _number(processor)
        if cpu is not None and cpu in wanted and (core := _core_in(processor)):
            keys.setdefault(cpu, core)
    return keys


def count_sockets(root: str, cpus: Iterable[int], found: Sequence[Processor]) -> int | None:
    """Distinct packages behind `cpus`; None when the kernel does not say."""
    folders = cpu_folders(root)
    read = (files.read_int(root, f"{CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in cpus if cpu in folders)
    packages = {number for number in read if number is not None and number >= 0}
    return len(packages or {p["physical id"] for p in found if "physical id" in p}) or None


def processors(root: str) -> list[Processor]:
    """/proc/cpuinfo, one dict a CPU."""
    blocks: list[Processor] = []
    for line in (files.read(root, "/proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        if (name := key.strip()) == "processor":
            blocks.append({})
        if colon and blocks:
            blocks[-1][name] = value.strip()
    return blocks


def numbers_of(found: Iterable[Processor]) -> tuple[int, ...]:
    """Their CPU numbers."""
    return tuple(sorted({number for p in found if (number := _number(p)) is not None}))


def _number(processor: Processor) -> int | None:
    number = files.to_int(processor.get("processor"))
    return number if number is not None and 0 <= number < 1 << 16 else None


def _siblings(root: str, cpu: int) -> tuple[int, ...]:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the same list under its newer and its older name
        if siblings := files.to_list(files.read(root, f"{CPUS}/cpu{cpu}/topology/{name}")):
            return siblings
    return ()


def _core_in(processor: Processor) -> tuple[str, str] | None:
    return (processor.get("physical id", ""), processor["core id"]) if "core id" in processor else None

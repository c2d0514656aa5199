"""One question: what this machine is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from localmoe.hardware import files, host
from localmoe.hardware.cgroup import cpu_quota
from localmoe.hardware.cores import allowed_cpus, physical_cores
from localmoe.hardware.cpu import read_cpu, read_nodes
from localmoe.hardware.disk import read_disk
from localmoe.hardware.gpu import NoGpuError, read_gpus
from localmoe.hardware.machine import Cpu, Disk, Gpu, Limits, Machine, Memory, Node
from localmoe.hardware.memory import read_memory

T = TypeVar("T")

_NO_CPU = Cpu(None, None, None, None, (), ())
_NO_MEMORY = Memory(None, None, None, 0, None, None)
_NO_LIMITS = Limits((), 1, None, None)
_NO_GPUS: tuple[tuple[Gpu, ...], str | None] = ((), None)


def probe(root: str | Path = "/", paths: Mapping[str, Path] | None = None) -> Machine:
    """What this machine is; `paths` are those whose disks matter, by purpose. Never raises.

    With another `root`, a recorded tree is read instead of this machine; GPUs are then not asked.
    """
    tree, unknown = str(root), dict[str, str]()

    def part(what: str, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - a kernel's odd file must not hide the rest; it is reported
            unknown[what] = f"{type(error).__name__}: {error}"
            return default

    cpu = part("CPU", lambda: read_cpu(tree), _NO_CPU)
    nodes = part("NUMA", lambda: read_nodes(tree), tuple[Node, ...]())
    memory = part("DRAM", lambda: read_memory(tree), _NO_MEMORY)
    limits = part("limits", lambda: _read_limits(tree), _NO_LIMITS)
    disks = part("disk", lambda: tuple(read_disk(tree, k, p) for k, p in (paths or {}).items()), tuple[Disk, ...]())
    gpus, driver = part("GPU", lambda: _gpus(tree, unknown), _NO_GPUS)
    container = part("container", lambda: host.container(tree), None)
    hypervisor = part("hypervisor", lambda: host.hypervisor(tree), None)
    reasons = _reasons(tree, cpu, nodes, memory) | unknown
    return Machine(
        cpu, nodes, memory, limits, disks, gpus, driver, container, hypervisor, tuple(sorted(reasons.items()))
    )


def _read_limits(root: str) -> Limits:
    return Limits(allowed_cpus(root), physical_cores(root), cpu_quota(root), _locked_bytes(root))


def _locked_bytes(root: str) -> int | None:
    """The soft limit of "Max locked memory  8388608  8388608  bytes"."""
    for line in (files.read(root, "/proc/self/limits") or "").splitlines():
        if line.startswith("Max locked memory"):
            return files.to_int((line.removeprefix("Max locked memory").split() or [""])[0])
    return None


def _gpus(root: str, unknown: dict[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    if root != "/":
        unknown["GPU"] = "not asked: this is a recorded machine"
        return (), None
    try:
        return read_gpus()
    except NoGpuError as error:
        unknown["GPU"] = str(error)
        return (), None


def _reasons(root: str, cpu: Cpu, nodes: tuple[Node, ...], memory: Memory) -> dict[str, str]:
    """Why parts of the answer are missing."""
    found = {
        "CPU": None if cpu.model else "no model name in /proc/cpuinfo",
        "sockets": None if cpu.num_sockets else "the kernel shows no topology",
        "NUMA": None if nodes else "no /sys/devices/system/node",
        "DRAM": None if memory.total_bytes else "no MemTotal in /proc/meminfo",
        "ISA": None if cpu.targets else _why_no_target(root),
    }
    return {what: reason for what, reason in found.items() if reason}


def _why_no_target(root: str) -> str:
    return "not asked: this is a recorded machine" if root != "/" else "localmoe's native module cannot be imported"

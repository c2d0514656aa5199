"""Why parts of the answer are missing: one line for each thing that could be unknown."""

from collections.abc import Iterator
from itertools import chain

from localmoe.hardware import cgroup
from localmoe.hardware.cores import CPUS, affinity
from localmoe.hardware.dimms import SMBIOS
from localmoe.hardware.files import why_not
from localmoe.hardware.huge_pages import POOLS
from localmoe.hardware.limits import MAX_MAP_COUNT, NUMA_BALANCING, locked_words
from localmoe.hardware.machine import Cpu, Dimms, Limits, Machine, Memory
from localmoe.hardware.memory import THP
from localmoe.hardware.nodes import NODES, Node

CPUINFO, MEMINFO, STATUS = "/proc/cpuinfo", "/proc/meminfo", "/proc/self/status"
TOPOLOGY = f"{CPUS}/cpu0/topology"


def reasons(root: str, machine: Machine) -> dict[str, str]:
    """Word and reason of everything that is unknown, except disks and GPUs: whoever read those knows more."""
    return dict(
        chain(
            _of_cpu(root, machine.cpu),
            _of_nodes(root, machine.nodes),
            _of_memory(root, machine.memory),
            _of_limits(root, machine.limits),
        )
    )


def _of_cpu(root: str, cpu: Cpu) -> Iterator[tuple[str, str]]:
    if cpu.model is None:
        yield "CPU", why_not(root, CPUINFO, "model name")
    if cpu.num_sockets is None:
        yield "sockets", why_not(root, f"{TOPOLOGY}/physical_package_id")
    if cpu.num_cores is None or cpu.num_threads is None:
        yield "cores", why_not(root, f"{TOPOLOGY}/thread_siblings_list", "core of every CPU")
    if not cpu.targets:
        yield "ISA", "localmoe's native module cannot be imported" if root == "/" else why_not(root, CPUINFO, "flags")
    if not cpu.caches:
        yield "caches", why_not(root, f"{CPUS}/cpu0/cache/index0/size")


def _of_nodes(root: str, nodes: tuple[Node, ...]) -> Iterator[tuple[str, str]]:
    if not nodes:
        yield "NUMA", why_not(root, f"{NODES}/online")
    for node in nodes:
        if None in (node.total_bytes, node.free_bytes, node.available_bytes):
            yield (
                f"node {node.number} memory",
                why_not(root, f"{NODES}/node{node.number}/meminfo", "MemTotal or MemFree"),
            )


def _of_memory(root: str, memory: Memory) -> Iterator[tuple[str, str]]:
    if memory.total_bytes is None:
        yield "DRAM", why_not(root, MEMINFO, "MemTotal")
    if memory.available_bytes is None or memory.usable_bytes is None:
        yield "available DRAM", why_not(root, MEMINFO, "MemAvailable")
    if memory.swap_bytes is None:
        yield "swap", why_not(root, MEMINFO, "SwapTotal")
    if memory.huge_pages is None:
        yield "THP", why_not(root, f"{THP}/enabled")
    if memory.huge_page_defrag is None:
        yield "THP defrag", why_not(root, f"{THP}/defrag")
    if not memory.huge_pools:
        yield "huge pages", why_not(root, f"{POOLS}/hugepages-2048kB/free_hugepages")
    yield from _of_dimms(root, memory.dimms)


def _of_dimms(root: str, dimms: Dimms | None) -> Iterator[tuple[str, str]]:
    why = why_not(root, SMBIOS, "memory modules")
    if dimms is None:
        yield "DIMMs", why
        return
    told = why if dimms.source == "EDAC" else "the firmware does not tell"
    for what, found in (
        ("DIMM slots", dimms.num_slots),
        ("DIMM channels", dimms.num_channels),
        ("DIMM speed", dimms.speed_mt_s),
    ):
        if found is None:
            yield what, told


def _of_limits(root: str, limits: Limits) -> Iterator[tuple[str, str]]:
    if not affinity(root):
        yield "affinity", why_not(root, STATUS, "Cpus_allowed_list")
    if not limits.nodes:
        yield "memory nodes", why_not(root, STATUS, "Mems_allowed_list")
    if limits.locks_freely is None:
        yield "capabilities", why_not(root, STATUS, "CapEff")
    if locked_words(root) is None:
        yield "memlock", why_not(root, "/proc/self/limits", "Max locked memory")
    if limits.max_map_count is None:
        yield "map count", why_not(root, MAX_MAP_COUNT)
    if limits.numa_balancing is None:
        yield "NUMA balancing", why_not(root, NUMA_BALANCING)
    if (why := cgroup.why_unknown(root)) is not None:
        yield "cgroup", why

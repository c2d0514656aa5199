"""DRAM, and what is left of it for this process."""

from localmoe.hardware import files
from localmoe.hardware.cgroup import MemoryLimit, memory_limit
from localmoe.hardware.dimms import read_dimms
from localmoe.hardware.huge_pages import read_pools
from localmoe.hardware.machine import Memory

THP = "/sys/kernel/mm/transparent_hugepage"


def available_memory(root: str = "/") -> int:
    """Bytes that this process can still take: the least of MemAvailable and its cgroups' headroom; 0 when unknown."""
    meminfo = files.pairs(files.read(root, "/proc/meminfo"), ":")
    return _usable(files.kilobytes(meminfo, "MemAvailable"), memory_limit(root)) or 0


def read_memory(root: str) -> Memory:
    """DRAM as the kernel reports it, and the cgroup's limit, its pages and its modules."""
    meminfo = files.pairs(files.read(root, "/proc/meminfo"), ":")
    available, limit = files.kilobytes(meminfo, "MemAvailable"), memory_limit(root)
    return Memory(
        total_bytes=files.kilobytes(meminfo, "MemTotal"),
        available_bytes=available,
        cgroup_limit_bytes=limit.limit_bytes if limit else None,
        usable_bytes=_usable(available, limit),
        swap_bytes=files.kilobytes(meminfo, "SwapTotal"),
        huge_pages=files.in_brackets(files.read(root, f"{THP}/enabled")),
        huge_page_defrag=files.in_brackets(files.read(root, f"{THP}/defrag")),
        huge_pools=read_pools(root),
        dimms=read_dimms(root),
    )


def _usable(available: int | None, limit: MemoryLimit | None) -> int | None:
    known = [n for n in (available, limit.headroom_bytes if limit else None) if n is not None]
    return min(known, default=None)

"""DRAM, and what is left of it for this process."""

from localmoe.hardware import files
from localmoe.hardware.cgroup import memory_limit
from localmoe.hardware.machine import Memory


def available_memory(root: str = "/") -> int:
    """Bytes that this process can still take: the least of MemAvailable and its cgroups' headroom; 0 when unknown."""
    meminfo = files.pairs(files.read(root, "/proc/meminfo"), ":")
    available = files.kilobytes(meminfo, "MemAvailable")
    limit = memory_limit(root)
    known = [n for n in (available, limit.headroom_bytes if limit else None) if n is not None]
    return min(known, default=0)


def read_memory(root: str) -> Memory:
    """DRAM as the kernel reports it, and the cgroup's limit."""
    meminfo = files.pairs(files.read(root, "/proc/meminfo"), ":")
    limit = memory_limit(root)
    return Memory(
        total_bytes=files.kilobytes(meminfo, "MemTotal"),
        available_bytes=files.kilobytes(meminfo, "MemAvailable"),
        cgroup_limit_bytes=limit.limit_bytes if limit else None,
        usable_bytes=available_memory(root),
        swap_bytes=files.kilobytes(meminfo, "SwapTotal"),
        huge_pages=_selected(files.read(root, "/sys/kernel/mm/transparent_hugepage/enabled")),
    )


def _selected(text: str | None) -> str | None:
    """The word in brackets of "always [madvise] never"."""
    _, bracket, rest = (text or "").partition("[")
    return rest.partition("]")[0] if bracket else None

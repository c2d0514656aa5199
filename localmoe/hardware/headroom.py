"""How much memory is left for this process."""

from localmoe.hardware import files
from localmoe.hardware.cgroup import MemoryLimit, memory_limit


def available_memory(root: str = "/") -> int:
    """Bytes that this process can still take: the least of MemAvailable and its cgroups' headroom; 0 when unknown."""
    meminfo = files.pairs(files.read(root, "/proc/meminfo"), ":")
    return usable(files.kilobytes(meminfo, "MemAvailable"), memory_limit(root)) or 0


def usable(available: int | None, limit: MemoryLimit | None) -> int | None:
    """The least of both; None when neither is known."""
    known = [n for n in (available, limit.headroom_bytes if limit else None) if n is not None]
    return min(known, default=None)

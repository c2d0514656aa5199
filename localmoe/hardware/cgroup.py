"""Control-group limits of this process, version 1, version 2 or both at once.

A limit may sit on any ancestor, so all of them count. In a container the process's own group may be the mount's root:
the path in /proc/self/cgroup is taken relative to the root that /proc/self/mountinfo gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from localmoe.hardware import files
from localmoe.hardware.mounts import mounts

UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as a number near 2^63
_LIMITS = {
    "memory": ("memory.max", "memory.high", "memory.limit_in_bytes"),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
}


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest group's limit, and what is left of it once its file cache is dropped."""

    limit_bytes: int
    headroom_bytes: int


def memory_limit(root: str) -> MemoryLimit | None:
    """The group with the least headroom; None when no limit is set."""
    found = [
        limit
        for kind, usage, stat in (
            ("memory.max", "memory.current", ""),
            ("memory.high", "memory.current", ""),  # above it the kernel slows the group down until it shrinks
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        )
        for group in _groups(root, "memory")
        if (limit := _memory_of(root, group, kind, usage, stat))
    ]
    return min(found, key=lambda m: m.headroom_bytes, default=None)


def huge_page_headroom(root: str) -> int | None:
    """Bytes of reserved 2 MB pages that all groups still allow; None when no limit is set."""
    found = [
        max(0, limit - (files.read_int(root, f"{group}/{usage}") or 0))
        for kind, usage in (
            ("hugetlb.2MB.max", "hugetlb.2MB.current"),
            ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes"),
        )
        for group in _groups(root, "hugetlb")
        if (limit := files.read_int(root, f"{group}/{kind}")) is not None and limit < UNLIMITED_BYTES
    ]
    return min(found, default=None)


def cpu_quota(root: str) -> float | None:
    """CPUs' worth of time per period; None when no quota is set."""
    quotas = [quota for group in _groups(root, "cpu") if (quota := _quota_of(root, group))]
    return min(quotas, default=None)


def why_unknown(root: str) -> str | None:
    """Why limits may be missed: a file that should tell one and does not; None when all were understood."""
    for path in ("/proc/self/cgroup", "/proc/self/mountinfo"):
        if not files.read_line(root, path):
            return files.why_not(root, path, "line")
    if not list(_memberships(root)):
        return files.why_not(root, "/proc/self/cgroup")
    limits = [
        (group, name) for controller, names in _LIMITS.items() for group in _groups(root, controller) for name in names
    ]
    odd = (f"{group}/{name}" for group, name in limits if not _understood(root, f"{group}/{name}"))
    return next((files.why_not(root, path) for path in odd), None)


def _understood(root: str, path: str) -> bool:
    """A limit that is absent is none; the root group has no such files."""
    if not files.exists(root, path):
        return True
    words = (files.read(root, path) or "").split()
    return bool(words) and all(word == "max" or files.to_int(word) is not None for word in words)


def _memory_of(root: str, group: PurePosixPath, limit: str, usage: str, stat_prefix: str) -> MemoryLimit | None:
    limit_bytes = files.read_int(root, f"{group}/{limit}")
    stat = files.pairs(files.read(root, f"{group}/memory.stat"))
    if stat_prefix and limit_bytes is not None:  # version 1 also tells the limit of ancestors out of sight
        limit_bytes = min(limit_bytes, files.to_int(stat.get("hierarchical_memory_limit")) or limit_bytes)
    if limit_bytes is None or not 0 <= limit_bytes < UNLIMITED_BYTES:
        return None
    cached = sum(files.to_int(stat.get(f"{stat_prefix}{kind}_file")) or 0 for kind in ("active", "inactive"))
    used_bytes = max(0, (files.read_int(root, f"{group}/{usage}") or 0) - cached)
    return MemoryLimit(limit_bytes, max(0, limit_bytes - used_bytes))


def _quota_of(root: str, group: PurePosixPath) -> float | None:
    """Version 2: "max 100000" or "150000 100000"; version 1: two files, -1 for none."""
    words = (files.read(root, f"{group}/cpu.max") or "").split()
    quota, period = [*words, "", ""][:2]
    quota_us = files.to_int(quota) or files.read_int(root, f"{group}/cpu.cfs_quota_us")
    period_us = files.to_int(period) or files.read_int(root, f"{group}/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 and period_us > 0 else None


def _groups(root: str, controller: str) -> Iterator[PurePosixPath]:
    """This process's group in each hierarchy that could hold `controller`, and its ancestors."""
    mounted = mounts(root)
    for path, names in _memberships(root):
        for mount in mounted:
            version2 = mount.filesystem == "cgroup2" and not names
            version1 = mount.filesystem == "cgroup" and controller in names and controller in mount.options
            if version1 or version2:
                yield from _ancestors(PurePosixPath(mount.point), _below(path, mount.root))


def _memberships(root: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Path and controllers of each hierarchy; version 2 has none."""
    for line in (files.read(root, "/proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            yield parts[2], tuple(name for name in parts[1].split(",") if name)


def _below(path: str, mount_root: str) -> PurePosixPath:
    try:
        return PurePosixPath(path).relative_to(mount_root)
    except ValueError:  # outside of what is mounted here: the mount is all that can be seen
        return PurePosixPath()


def _ancestors(point: PurePosixPath, inside: PurePosixPath) -> Iterator[PurePosixPath]:
    parts = [part for part in inside.parts if part != ".."]
    for depth in range(len(parts), -1, -1):
        yield point.joinpath(*parts[:depth])

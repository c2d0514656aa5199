"""What the kernel lets this process have: CPUs, nodes, locked memory, mappings."""

from localmoe.hardware import files
from localmoe.hardware.cgroup import cpu_quota, huge_page_headroom
from localmoe.hardware.cores import allowed_cpus, usable_cores
from localmoe.hardware.machine import Limits

MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"
NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"
UNLIMITED = "unlimited"
_CAP_IPC_LOCK = 1 << 14


def read_limits(root: str) -> Limits:
    """All of them."""
    cpus = allowed_cpus(root)
    status = files.pairs(files.read(root, "/proc/self/status"), ":")
    locked, locked_most = locked_words(root) or ("", "")
    return Limits(
        cpus=cpus,
        usable_cores=usable_cores(root, cpus),
        cpu_quota=cpu_quota(root),
        locked_bytes=files.to_int(locked),
        locked_most_bytes=files.to_int(locked_most),
        locks_freely=_may_lock(status.get("CapEff", "")),
        nodes=files.to_list(status.get("Mems_allowed_list")),
        max_map_count=files.read_int(root, MAX_MAP_COUNT),
        huge_page_bytes=huge_page_headroom(root),
        numa_balancing=files.read_int(root, NUMA_BALANCING),
    )


def locked_words(root: str) -> tuple[str, str] | None:
    """Soft and hard limit of "Max locked memory  8388608  unlimited  bytes"; None when that is not to be read."""
    for line in (files.read(root, "/proc/self/limits") or "").splitlines():
        words = line.removeprefix("Max locked memory").split()
        if line.startswith("Max locked memory") and len(words) >= 2 and all(map(_is_limit, words[:2])):
            return words[0], words[1]
    return None


def _is_limit(word: str) -> bool:
    return word == UNLIMITED or files.to_int(word) is not None


def _may_lock(capabilities: str) -> bool | None:
    """From the hexadecimal mask in /proc/self/status."""
    try:
        return bool(int(capabilities, 16) & _CAP_IPC_LOCK)
    except ValueError:
        return None

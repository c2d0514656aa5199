"""NUMA nodes: which CPUs and how much memory each has."""

from dataclasses import dataclass

from localmoe.hardware import files

NODES = "/sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node; one without memory has 0 bytes, one without CPUs none of them."""

    number: int
    cpus: tuple[int, ...]
    total_bytes: int | None  # "node N memory"
    free_bytes: int | None  # "node N memory"
    available_bytes: int | None = None  # free, and what file caches could give back; "node N memory"


def read_nodes(root: str) -> tuple[Node, ...]:
    """NUMA nodes, those without memory or CPUs too; empty when the kernel does not tell."""
    folders = set(files.names(root, NODES))
    numbers = files.to_list(files.read(root, f"{NODES}/online"))
    return tuple(_read_node(root, number) for number in numbers if f"node{number}" in folders)


def _read_node(root: str, number: int) -> Node:
    lines = (files.read(root, f"{NODES}/node{number}/meminfo") or "").splitlines()
    meminfo = files.pairs("\n".join(line.split(None, 2)[-1] for line in lines if line.strip()), ":")
    total, free = files.kilobytes(meminfo, "MemTotal"), files.kilobytes(meminfo, "MemFree")
    caches = [files.kilobytes(meminfo, key) for key in ("Active(file)", "Inactive(file)", "SReclaimable")]
    available = None if free is None else free + sum(nbytes or 0 for nbytes in caches)
    return Node(number, files.to_list(files.read(root, f"{NODES}/node{number}/cpulist")), total, free, available)

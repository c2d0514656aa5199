"""On which CPUs workers run."""

from collections.abc import Sequence

from localmoe.hardware.cores import allowed_cpus, cores_of
from localmoe.hardware.nodes import read_nodes

UNPINNED = -1


def worker_cpus(num_workers: int, root: str = "/") -> list[int]:
    """A CPU for each worker: one per physical core, the first ones left to others; UNPINNED when there are too few."""
    cores = cpus_of_cores(root)
    return cores[-num_workers:] if num_workers <= len(cores) else [UNPINNED] * num_workers


def cpus_of_cores(root: str = "/") -> list[int]:
    """The first CPU of every physical core that this process may run on."""
    allowed, cpus = allowed_cpus(root), dict[object, int]()
    cores = cores_of(root, allowed)
    for cpu in allowed:
        cpus.setdefault(cores.get(cpu, cpu), cpu)
    return sorted(cpus.values())


def nodes_of(cpus: Sequence[int], root: str = "/") -> list[int | None]:
    """The NUMA node of each CPU; None for UNPINNED, and where the kernel does not tell."""
    found = {cpu: node.number for node in read_nodes(root) for cpu in node.cpus}
    return [found.get(cpu) for cpu in cpus]

"""On which CPUs workers run."""

from collections.abc import Sequence

from localmoe.hardware import files
from localmoe.hardware.cores import allowed_cpus
from localmoe.hardware.cpu import read_nodes

UNPINNED = -1


def worker_cpus(num_workers: int, root: str = "/") -> list[int]:
    """A CPU for each worker: one per physical core, the first ones left to others; UNPINNED when there are too few."""
    cores = cpus_of_cores(root)
    return cores[-num_workers:] if num_workers <= len(cores) else [UNPINNED] * num_workers


def cpus_of_cores(root: str = "/") -> list[int]:
    """The first CPU of every physical core that this process may run on."""
    cpus: dict[object, int] = {}
    for cpu in allowed_cpus(root):
        siblings = files.to_list(files.read(root, f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        cpus.setdefault(siblings or cpu, cpu)
    return sorted(cpus.values())


def nodes_of(cpus: Sequence[int], root: str = "/") -> list[int | None]:
    """The NUMA node of each CPU; None for UNPINNED, and where the kernel does not tell."""
    found = {cpu: node.number for node in read_nodes(root) for cpu in node.cpus}
    return [found.get(cpu) for cpu in cpus]

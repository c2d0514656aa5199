"""On which CPUs workers run."""

from localmoe.hardware import files
from localmoe.hardware.cores import allowed_cpus

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

"""DRAM: how much, of what pages and in which modules."""

import re

from localmoe.hardware import files
from localmoe.hardware.cgroup import memory_limit
from localmoe.hardware.dimms import read_dimms
from localmoe.hardware.headroom import usable
from localmoe.hardware.huge_pages import POOLS, free_pages
from localmoe.hardware.machine import HugePool, Memory

THP = "/sys/kernel/mm/transparent_hugepage"
_FOLDER = re.compile(r"hugepages-(\d{1,9})kB")


def read_memory(root: str) -> Memory:
    """DRAM as the kernel reports it, and the cgroup's limit, its pages and its modules."""
    meminfo = files.pairs(files.read(root, "/proc/meminfo"), ":")
    available, limit = files.kilobytes(meminfo, "MemAvailable"), memory_limit(root)
    return Memory(
        total_bytes=files.kilobytes(meminfo, "MemTotal"),
        available_bytes=available,
        cgroup_limit_bytes=limit.limit_bytes if limit else None,
        usable_bytes=usable(available, limit),
        swap_bytes=files.kilobytes(meminfo, "SwapTotal"),
        huge_pages=files.in_brackets(files.read(root, f"{THP}/enabled")),
        huge_page_defrag=files.in_brackets(files.read(root, f"{THP}/defrag")),
        huge_pools=_read_pools(root),
        dimms=read_dimms(root),
    )


def _read_pools(root: str) -> tuple[HugePool, ...]:
    """The pool of each page size that the kernel has; empty when it does not tell."""
    pools = []
    for name in files.names(root, POOLS):
        folder = f"{POOLS}/{name}"
        found, num_pages = _FOLDER.fullmatch(name), files.read_int(root, f"{folder}/nr_hugepages")
        if found and num_pages is not None and (free := free_pages(root, folder)) is not None:
            pools.append(HugePool(int(found[1]) << 10, num_pages, free))
    return tuple(sorted(pools, key=lambda pool: pool.page_bytes))

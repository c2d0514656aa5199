"""Pages that an administrator has set aside (hugetlbfs): they are nobody's until a program asks for them."""

import re

from localmoe.hardware import files
from localmoe.hardware.cgroup import huge_page_headroom
from localmoe.hardware.machine import HugePool

HUGE_PAGE_BYTES = 2 << 20
POOLS = "/sys/kernel/mm/hugepages"
POOL = f"{POOLS}/hugepages-2048kB"
_FOLDER = re.compile(r"hugepages-(\d{1,9})kB")


def reserved_pool(root: str = "/") -> int:
    """Bytes in 2 MB pages that this process can have: neither used nor promised, within its cgroups' limits."""
    left, headroom = (_free_pages(root, POOL) or 0) * HUGE_PAGE_BYTES, huge_page_headroom(root)
    return left if headroom is None else min(left, headroom)


def read_pools(root: str) -> tuple[HugePool, ...]:
    """The pool of each page size that the kernel has; empty when it does not tell."""
    pools = []
    for name in files.names(root, POOLS):
        folder = f"{POOLS}/{name}"
        found, num_pages = _FOLDER.fullmatch(name), files.read_int(root, f"{folder}/nr_hugepages")
        if found and num_pages is not None and (free := _free_pages(root, folder)) is not None:
            pools.append(HugePool(int(found[1]) << 10, num_pages, free))
    return tuple(sorted(pools, key=lambda pool: pool.page_bytes))


def _free_pages(root: str, folder: str) -> int | None:
    free, promised = (files.read_int(root, f"{folder}/{name}") for name in ("free_hugepages", "resv_hugepages"))
    return None if free is None else max(0, free - (promised or 0))

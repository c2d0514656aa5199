"""Pages that an administrator has set aside (hugetlbfs): they are nobody's until a program asks for them."""

from localmoe.hardware import files
from localmoe.hardware.cgroup import huge_page_headroom

HUGE_PAGE_BYTES = 2 << 20
MADV_POPULATE_WRITE = 23  # of Linux 5.14: takes all pages of a range from the system at once
POOLS = "/sys/kernel/mm/hugepages"
POOL = f"{POOLS}/hugepages-2048kB"


def reserved_pool(root: str = "/") -> int:
    """Bytes in 2 MB pages that this process can have: neither used nor promised, within its cgroups' limits."""
    left, headroom = (free_pages(root, POOL) or 0) * HUGE_PAGE_BYTES, huge_page_headroom(root)
    return left if headroom is None else min(left, headroom)


def free_pages(root: str, folder: str) -> int | None:
    """Pages of the pool in `folder` that are neither used nor promised; None when it does not tell."""
    free, promised = (files.read_int(root, f"{folder}/{name}") for name in ("free_hugepages", "resv_hugepages"))
    return None if free is None else max(0, free - (promised or 0))

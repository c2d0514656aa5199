"""Pages of 2 MB that an administrator has set aside (hugetlbfs): they are nobody's until a program asks for them."""

from localmoe.hardware import files
from localmoe.hardware.cgroup import huge_page_headroom

HUGE_PAGE_BYTES = 2 << 20
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"


def reserved_pool(root: str = "/") -> int:
    """Bytes of it that this process can have: pages neither used nor promised, within its cgroups' limits."""
    free, promised = (files.read_int(root, f"{POOL}/{name}") or 0 for name in ("free_hugepages", "resv_hugepages"))
    if free <= promised:
        return 0
    left, headroom = (free - promised) * HUGE_PAGE_BYTES, huge_page_headroom(root)
    return left if headroom is None else min(left, headroom)

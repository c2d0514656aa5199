"""The memory that weights rest in: one anonymous mapping on huge pages."""

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.errors import OutOfMemoryError

HUGE_PAGE_BYTES = 2 << 20


class Arena:
    """`nbytes` of zeroed memory, its start on a 2 MB boundary.

    Every view keeps the mapping alive: the memory goes back when the arena and the last view are gone, so a view
    never dangles and nothing has to be unmapped by hand.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = _map(nbytes + HUGE_PAGE_BYTES)
        base = np.frombuffer(self._map, np.uint8)
        start = -base.ctypes.data % HUGE_PAGE_BYTES
        self._bytes = base[start : start + nbytes]

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """[nbytes] bytes at `offset`."""
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        return self._bytes[offset : offset + nbytes]

    def typed(self, offset: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """The array of `dtype` and `shape` at `offset`, row-major."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.view(offset, nbytes).view(dtype).reshape(shape)

    def discard(self) -> None:
        """Gives the memory back at once, whoever still holds views: they read zeros. For loads that failed."""
        self._map.madvise(mmap.MADV_DONTNEED)


def _map(nbytes: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemoryError(
            f"the system does not give {nbytes / 1e9:,.1f} GB of memory: {error}.",
            "look at `ulimit -v` and at vm.overcommit_memory, or choose a smaller model.",
        ) from error
    with suppress(OSError):  # a kernel without transparent huge pages: the same memory, more TLB misses
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping

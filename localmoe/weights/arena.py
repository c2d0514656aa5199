"""The memory that weights rest in: one anonymous mapping on pages of 2 MB, its regions on the NUMA nodes meant."""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe.errors import OutOfMemoryError
from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES, MADV_POPULATE_WRITE, reserved_pool
from localmoe.weights import numa
from localmoe.weights.layout import Region

MAP_HUGETLB_2MB = 0x40000 | 21 << 26  # with the size of its pages: the system's default may be another
MAP_PLAIN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Arena:
    """`nbytes` of zeroed memory, its start on a 2 MB boundary.

    Every view keeps the mapping alive: the memory goes back when the arena and the last view are gone, so a view
    never dangles and nothing has to be unmapped by hand. `notes` say what pages it has, and where.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        reserved = _map_reserved(nbytes)
        self._map = reserved or _map(_whole_pages(nbytes))
        self._bytes = _aligned(self._map, nbytes)
        self._pages = _why_reserved(nbytes) if reserved else _ask_for_huge_pages(self._map)
        self._placed: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """For people."""
        return (self._pages, self._placed) if self._placed else (self._pages,)

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self._bytes.ctypes.data)

    @property
    def page_bytes(self) -> int:
        """Its size in whole pages of 2 MB."""
        return _whole_pages(self.nbytes)

    def bind(self, regions: Sequence[Region]) -> None:
        """Asks for memory of the nodes that the regions are meant for. What was touched before stays where it is."""
        self._placed = numa.bind(self.address, regions)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """[nbytes] bytes at `offset`."""
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        return self._bytes[offset : offset + nbytes]

    def typed(self, offset: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """The array of `dtype` and `shape` at `offset`, row-major."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.view(offset, nbytes).view(dtype).reshape(shape)

    def populate(self) -> None:
        """Takes all of the memory from the system now, as finding it while others wait would slow them down."""
        with suppress(OSError):  # before Linux 5.14: it comes when it is written to
            self._map.madvise(MADV_POPULATE_WRITE)

    def discard(self) -> None:
        """Gives the memory back at once, whoever still holds views: they read zeros. For loads that failed."""
        with suppress(OSError):  # reserved pages before Linux 5.18: they go back with the last view
            self._map.madvise(mmap.MADV_DONTNEED)


def from_reserved(nbytes: int) -> int:
    """Bytes of an arena of `nbytes` that come from reserved pages, which are no part of the available memory."""
    return nbytes if reserved_pool() >= _whole_pages(nbytes) else 0


def bounce_buffer(nbytes: int) -> NDArray[np.uint8]:
    """[nbytes] bytes for reads; large ones on large pages, which the kernel pins faster for a direct read."""
    mapping = _map(nbytes)
    if nbytes >= HUGE_PAGE_BYTES:
        _ask_for_huge_pages(mapping)
    return _aligned(mapping, nbytes)


def _map_reserved(nbytes: int) -> mmap.mmap | None:
    """All of it on reserved pages, or None: a part would only make the rest harder to find."""
    if not from_reserved(nbytes):
        return None
    try:
        return mmap.mmap(-1, _whole_pages(nbytes), flags=MAP_PLAIN | MAP_HUGETLB_2MB)
    except OSError:  # another program was faster
        return None


def _map(nbytes: int) -> mmap.mmap:
    """With room to begin on a boundary."""
    try:
        return mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=MAP_PLAIN)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemoryError(
            f"the system does not give {nbytes / 1e9:,.1f} GB of memory: {error}.",
            "look at `ulimit -v` and at vm.overcommit_memory, or choose a smaller model.",
        ) from error


def _aligned(mapping: mmap.mmap, nbytes: int) -> NDArray[np.uint8]:
    base = np.frombuffer(mapping, np.uint8)
    start = -base.ctypes.data % HUGE_PAGE_BYTES
    return base[start : start + nbytes]


def _ask_for_huge_pages(mapping: mmap.mmap) -> str:
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        return f"the weights lie on pages of 4 KB: this kernel has no transparent huge pages ({error.strerror})"
    return "the weights lie on pages of 2 MB as far as the kernel finds them (madvise)"


def _why_reserved(nbytes: int) -> str:
    return f"the weights lie on {_whole_pages(nbytes) // HUGE_PAGE_BYTES:,} reserved pages of 2 MB (hugetlbfs)"


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES

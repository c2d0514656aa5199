"""The latent cache: pages of 64 tokens, shared by reference count, and one table of pages for each session.

Rows of a page that several tables share never change: `reserve` copies the last, partly filled page first.
"""

import threading
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import PAGE_TOKENS, LayerCache

ALIGNMENT_BYTES = 64
DTYPES: dict[str, Any] = {"float32": np.float32, "bf16": np.uint16}

CacheDtype = Literal["float32", "bf16"]


@dataclass(frozen=True)
class LayerPages:
    """One layer of the latent cache, as ops.LayerCache asks for it."""

    data: NDArray[Any]  # [pages, PAGE_TOKENS, width]: float32, or the bits of BF16 as uint16


class Latents(Protocol):
    """Pages of all layers, wherever they lie: in a LatentCache, or on a device, under the same numbers."""

    def layer(self, n: int) -> LayerCache:
        """Layer n's part of every page."""
        ...

    def rows(self, n: int) -> Any:
        """[pages * PAGE_TOKENS, row bytes] uint8 of layer n: views of the same memory, as streams copy it."""
        ...


class Copies(Protocol):
    """Who keeps copies of pages, and is told when they change."""

    def copy(self, source: int, target: int) -> None:
        """All layers' rows of page `source`."""
        ...

    def forget(self, page: int, rows: int) -> None:
        """The page's rows from `rows` on are about to be others."""
        ...


class LatentCache:
    """All pages of all layers. Memory is taken from the system when a page is first written."""

    def __init__(self, num_layers: int, num_pages: int, width: int, dtype: CacheDtype = "float32") -> None:
        self.num_layers = num_layers
        self.num_pages = num_pages
        self.width = width
        self.dtype = dtype
        self._data = _aligned_zeros((num_layers, num_pages, PAGE_TOKENS, width), DTYPES[dtype])
        self._users = [0] * num_pages  # tables that hold each page
        self._free = list(range(num_pages - 1, -1, -1))  # a stack, the lowest page on top
        self._lock = threading.Lock()
        self.followers: list[Copies] = []  # devices that have pages too

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, in use or not."""
        return self._data.nbytes

    @property
    def element_bytes(self) -> int:
        """Of one number."""
        return self._data.itemsize

    @property
    def free_pages(self) -> int:
        """Pages that no table holds."""
        return len(self._free)

    def layer(self, n: int) -> LayerPages:
        """Layer n's part of every page."""
        return LayerPages(self._data[n])

    def rows(self, n: int) -> NDArray[np.uint8]:
        """As Latents says."""
        return self._data[n].reshape(-1, self.width).view(np.uint8)

    def new_table(self) -> "PageTable":
        """An empty session."""
        return PageTable(self)

    def take(self, count: int) -> list[int]:
        """`count` pages, each with one user. Raises OutOfMemoryError and takes none when there are fewer."""
        with self._lock:
            if count > len(self._free):
                raise OutOfMemoryError(
                    f"The latent cache is full: {count} pages of {PAGE_TOKENS} tokens are needed, "
                    f"{len(self._free)} of {self.num_pages} are free.",
                    "Shorten or close other conversations, or start with a larger --context.",
                )
            pages = [self._free.pop() for _ in range(count)]
            for page in pages:
                self._users[page] = 1
        for page in pages:
            self.forget(page, 0)
        return pages

    def share(self, pages: NDArray[np.int32]) -> None:
        """One more user for each of `pages`."""
        with self._lock:
            for page in pages:
                self._users[page] += 1

    def drop(self, pages: NDArray[np.int32]) -> None:
        """One user less for each of `pages`; those without users are free again."""
        with self._lock:
            for page in pages:
                assert self._users[page] > 0, "a page was dropped twice"
                self._users[page] -= 1
                if self._users[page] == 0:
                    self._free.append(int(page))

    def is_shared(self, page: int) -> bool:
        """Whether more than one table holds `page`."""
        return self._users[page] > 1

    def copy(self, source: int, target: int) -> None:
        """All layers' rows of page `source`."""
        self._data[:, target] = self._data[:, source]
        for follower in self.followers:
            follower.copy(source, target)

    def forget(self, page: int, rows: int) -> None:
        """Tells those who have copies that the page's rows from `rows` on are about to be others."""
        for follower in self.followers:
            follower.forget(page, rows)


class PageTable:
    """One session's pages, in order. Token p lies in row p % 64 of pages[p // 64].

    `length` counts the tokens that are reserved. Rows below it stay as they are: to write some of them again, rewind.
    """

    def __init__(self, cache: LatentCache) -> None:
        self.cache = cache
        self.length = 0
        self.pages: NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def capacity(self) -> int:
        """Tokens that fit into the pages held."""
        return len(self.pages) * PAGE_TOKENS

    def reserve(self, num_tokens: int) -> None:
        """Room for `num_tokens` tokens in all, writable from `length` on.

        Raises OutOfMemoryError, and changes nothing, when there are too few free pages.
        """
        if num_tokens <= self.length:
            return
        copies = self._writes_into_shared_page()
        taken = self.cache.take(_pages_for(num_tokens) - len(self.pages) + copies)
        pages = self.pages.copy()
        if copies:
            self.cache.copy(int(pages[-1]), taken[0])
            self.cache.drop(pages[-1:])
            pages[-1] = taken[0]
        if self.length % PAGE_TOKENS:
            self.cache.forget(int(pages[len(self.pages) - 1]), self.length % PAGE_TOKENS)
        self.pages = np.concatenate([pages, np.asarray(taken[copies:], np.int32)])
        self.length = num_tokens

    def rewind(self, num_tokens: int) -> None:
        """Forgets all but the first `num_tokens` tokens and drops the pages that they leave."""
        if num_tokens >= self.length:
            return
        keep = _pages_for(num_tokens)
        self.cache.drop(self.pages[keep:])
        self.pages = self.pages[:keep].copy()
        self.length = num_tokens

    def fork(self) -> "PageTable":
        """A second session that begins with the same tokens, in the same pages."""
        table = PageTable(self.cache)
        self.cache.share(self.pages)
        table.pages, table.length = self.pages.copy(), self.length
        return table

    def release(self) -> None:
        """Drops every page; the table is empty then, and may be used again."""
        self.rewind(0)

    def _writes_into_shared_page(self) -> bool:
        return self.length % PAGE_TOKENS != 0 and self.cache.is_shared(int(self.pages[-1]))


def _pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)


def _aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros at a multiple of ALIGNMENT_BYTES, which numpy does not promise."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + count].view(dtype).reshape(shape)

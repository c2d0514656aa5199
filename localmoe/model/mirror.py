"""Pages of the latent cache on a device: which rows of them are those of the cache that numbers them."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from localmoe.kernels.ops import PAGE_TOKENS, LayerCache, Segment
from localmoe.model.cache import LatentCache, Latents


class PageMemory(Protocol):
    """The device's memory: cache.Latents, and copies within."""

    def layer(self, n: int) -> LayerCache: ...

    def rows(self, n: int) -> Any: ...

    def copy(self, source: int, target: int) -> None: ...


class Mirror:
    """cache.Latents in `memory`, for the tables of `cache`, which tells when pages are taken, copied and written on.

    The device has the first rows of a page, or none: what a pass has written there, or what was brought there before.
    """

    def __init__(self, cache: LatentCache, memory: PageMemory) -> None:
        self._memory = memory
        self._held = np.zeros(cache.num_pages, np.int32)  # rows of each page
        cache.followers.append(self)

    def layer(self, n: int) -> LayerCache:
        """As Latents says."""
        return self._memory.layer(n)

    def rows(self, n: int) -> Any:
        """As Latents says."""
        return self._memory.rows(n)

    def copy(self, source: int, target: int) -> None:
        """As Copies says."""
        self._memory.copy(source, target)
        self._held[target] = self._held[source]

    def forget(self, page: int, rows: int) -> None:
        """As Copies says."""
        self._held[page] = min(self._held[page], rows)

    def hold(self, segments: Sequence[Segment]) -> None:
        """The device writes the segments' tokens. Where it lacks rows before them in a page, it has none of these."""
        for s in segments:
            for n, (page, rows) in enumerate(_pages(s, s.start + s.count)):
                if s.start - n * PAGE_TOKENS <= self._held[page] and rows > s.start - n * PAGE_TOKENS:
                    self._held[page] = max(self._held[page], rows)

    def complete(self, segments: Sequence[Segment]) -> None:
        """The device has all of the sessions, to the segments' ends."""
        for s in segments:
            for page, rows in _pages(s, s.start + s.count):
                self._held[page] = max(self._held[page], rows)

    def missing(self, segments: Sequence[Segment]) -> list[range]:
        """Rows of a layer, counted over all pages, that come before the segments and are not on the device."""
        found = []
        for s in segments:
            for page, rows in _pages(s, s.start):
                found.append(range(page * PAGE_TOKENS + int(self._held[page]), page * PAGE_TOKENS + rows))
        return joined(found)


def missing(latents: Latents, segments: Sequence[Segment]) -> list[range]:
    """As Mirror.missing; nothing where the cache itself is."""
    return latents.missing(segments) if isinstance(latents, Mirror) else []


def complete(latents: Latents, segments: Sequence[Segment]) -> None:
    """As Mirror.complete."""
    if isinstance(latents, Mirror):
        latents.complete(segments)


def hold(latents: Latents, segments: Sequence[Segment]) -> None:
    """As Mirror.hold."""
    if isinstance(latents, Mirror):
        latents.hold(segments)


def written(segments: Sequence[Segment]) -> list[range]:
    """Rows of a layer, counted over all pages, that a run over the segments writes."""
    found = []
    for s in segments:
        for n, (page, rows) in enumerate(_pages(s, s.start + s.count)):
            first = max(s.start - n * PAGE_TOKENS, 0)
            found.append(range(page * PAGE_TOKENS + first, page * PAGE_TOKENS + rows))
    return joined(found)


def joined(ranges: Sequence[range]) -> list[range]:
    """Each row once; ranges that meet as one."""
    found: list[range] = []
    for rows in sorted((r for r in ranges if len(r)), key=lambda r: r.start):
        if found and rows.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, rows.stop))
        else:
            found.append(rows)
    return found


def _pages(segment: Segment, num_tokens: int) -> Iterator[tuple[int, int]]:
    """The pages of the session's first tokens, with the rows that they fill of each."""
    for n, start in enumerate(range(0, num_tokens, PAGE_TOKENS)):
        yield int(segment.table.pages[n]), min(PAGE_TOKENS, num_tokens - start)

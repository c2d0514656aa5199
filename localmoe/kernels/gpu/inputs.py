"""What a run is told: token rows, positions, page tables. Staged by the host, then copied to buffers that stay.

`stage` writes page-locked memory only; `upload` issues the copies on the stream that the run begins on. What was
staged before must have been waited for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localmoe.kernels.gpu.attention import MOST_ABSORBED, Absorbed, Expanded, most_queries
from localmoe.kernels.gpu.launch import ceil_div
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.ops import PAGE_TOKENS, Linear, Rope, Segment
from localmoe.kernels.segments import Tokens

Words = NDArray[np.int32]


class Staged:
    """One tensor on the device, and its twin in the system's memory."""

    def __init__(self, gpu: Gpu, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._gpu = gpu
        self.there = gpu.empty(shape, dtype)
        self.here = gpu.staging(shape, dtype)

    def upload(self, count: int) -> None:
        """Issues the copy of the first `count` rows."""
        if count:
            self.there[:count].copy_(self.here[:count], non_blocking=True)

    def download(self, count: int) -> None:
        """Issues the copy of the first `count` rows the other way."""
        self.here[:count].copy_(self.there[:count], non_blocking=True)

    def grown(self, count: int) -> "Staged":
        """With at least `count` rows: a new one where there are fewer."""
        if count <= len(self.there):
            return self
        return Staged(self._gpu, (count, *self.there.shape[1:]), self.there.dtype)


@dataclass(frozen=True)
class Span:
    """Rows of a run that take one form of attention. Absorbed ones have queries from `at` on, others table words."""

    first: int
    count: int
    at: int
    length: int  # the session's tokens, these included; 0: absorbed


class Inputs:
    """Of the programs for up to `max_tokens` tokens over a cache of `num_pages` pages."""

    def __init__(self, gpu: Gpu, max_tokens: int, num_pages: int, rope: Rope | None, table: Linear | None) -> None:
        self._gpu = gpu
        self._rope = rope
        self._embedding = None if table is None else _table(table)
        self._spans: list[Span] = []
        most = most_queries(max_tokens)
        hidden = 0 if self._embedding is None else self._embedding.shape[1]
        self._rows = Staged(gpu, (max_tokens if hidden else 0, hidden), torch.bfloat16)
        self._words = Staged(gpu, (3, max_tokens), torch.int32)  # positions, rows of the cache, selected
        self._queries = Staged(gpu, (most, num_pages), torch.int32)
        self._lengths = Staged(gpu, (most,), torch.int32)
        self._pages = Staged(gpu, (num_pages,), torch.int32)
        dim = 0 if rope is None else rope.dim
        self._angles = gpu.empty((max_tokens, dim // 2), torch.float32)
        self._rotation = gpu.empty((max_tokens, dim), torch.float32)
        self._inv_freq = None if rope is None else torch.from_numpy(rope.inv_freq.copy()).to(gpu.device)
        self.num_tokens = 0
        self.num_selected = 0

    @property
    def nbytes(self) -> int:
        """On the device."""
        staged = (self._rows, self._words, self._queries, self._lengths, self._pages)
        return sum(s.there.nbytes for s in staged) + self._angles.nbytes + self._rotation.nbytes

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Tokens, selected ones, and whether all are absorbed: runs of one shape launch the same."""
        return self.num_tokens, self.num_selected, all(not span.length for span in self._spans)

    def stage(self, tokens: Tokens) -> None:
        """The runs that follow are about `tokens`."""
        self.num_tokens, self.num_selected = tokens.num_rows, len(tokens.selected)
        words = self._words.here.numpy()
        words[0, : self.num_tokens], words[1, : self.num_tokens] = _places(tokens.segments)
        words[2, : self.num_selected] = tokens.selected
        if self._embedding is not None:
            np.take(
                self._embedding, tokens.ids, axis=0, out=self._rows.here.view(torch.uint16).numpy()[: len(tokens.ids)]
            )
        self._spans = _merged(self._stage_tables(tokens.segments))

    def upload(self) -> None:
        """Issues the copies of what was staged, and makes the rotation of it."""
        num = self.num_tokens
        self._rows.upload(num if self._embedding is not None else 0)
        self._words.upload(3)
        absorbed = sum(span.count for span in self._spans if not span.length)
        self._queries.upload(absorbed)
        self._lengths.upload(absorbed)
        self._pages.upload(sum(ceil_div(span.length, PAGE_TOKENS) for span in self._spans))
        if self._rope is None or self._inv_freq is None or not num:
            return
        angles, rotation, half = self._angles[:num], self._rotation[:num], self._rope.dim // 2
        torch.mul(self.positions[:, None], self._inv_freq, out=angles)
        torch.cos(angles, out=rotation[:, :half])
        torch.sin(angles, out=rotation[:, half:])
        rotation.mul_(self._rope.scale)

    @property
    def embedded(self) -> Tensor:
        """[T, H] bfloat16."""
        return self._rows.there[: self.num_tokens]

    @property
    def positions(self) -> Tensor:
        """[T] int32."""
        return self._words.there[0, : self.num_tokens]

    @property
    def cache_rows(self) -> Tensor:
        """[T] int32: 64 * page + row in the page."""
        return self._words.there[1, : self.num_tokens]

    @property
    def selected(self) -> Tensor:
        """[S] int32."""
        return self._words.there[2, : self.num_selected]

    @property
    def rotation(self) -> Tensor:
        """[T, dim] float32, as by norm.rotation."""
        return self._rotation[: self.num_tokens]

    def pieces(self) -> list[Absorbed | Expanded]:
        """The rows of the run by the form of their attention."""
        return [self._piece(span) for span in self._spans]

    def _piece(self, span: Span) -> Absorbed | Expanded:
        if span.length:
            return Expanded(span.first, span.count, span.length, self._pages.there[span.at :])
        at = slice(span.at, span.at + span.count)
        return Absorbed(span.first, span.count, self._queries.there[at], self._lengths.there[at])

    def _stage_tables(self, segments: Sequence[Segment]) -> Iterator[Span]:
        """The page tables by form, one span for each segment."""
        forms = list(_forms(segments, len(self._lengths.here)))
        num_words = sum(ceil_div(s.start + s.count, PAGE_TOKENS) for s, absorbed in forms if not absorbed)
        self._pages = self._pages.grown(num_words)
        queries, lengths, pages = (s.here.numpy() for s in (self._queries, self._lengths, self._pages))
        first, query, word = 0, 0, 0
        for s, absorbed in forms:
            end, num = s.start + s.count, ceil_div(s.start + s.count, PAGE_TOKENS)
            if absorbed:
                queries[query : query + s.count, :num] = s.table.pages[:num]
                lengths[query : query + s.count] = np.arange(s.start + 1, end + 1)
                yield Span(first, s.count, query, 0)
                query += s.count
            else:
                pages[word : word + num] = s.table.pages[:num]
                yield Span(first, s.count, word, end)
                word += num
            first += s.count


def _forms(segments: Sequence[Segment], room: int) -> Iterator[tuple[Segment, bool]]:
    """Whether each is absorbed: it is short, and there is room for its tokens."""
    for s in segments:
        absorbed = s.count <= min(MOST_ABSORBED, room)
        room -= s.count if absorbed else 0
        yield s, absorbed


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Neighbours that are absorbed as one."""
    found: list[Span] = []
    for span in spans:
        if found and not span.length and not found[-1].length:
            found[-1] = replace(found[-1], count=found[-1].count + span.count)
        else:
            found.append(span)
    return found


def _places(segments: Sequence[Segment]) -> tuple[Words, Words]:
    """Position and row of the cache of each token."""
    if not segments:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    at = [np.arange(s.start, s.start + s.count, dtype=np.int32) for s in segments]
    rows = [s.table.pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for s, p in zip(segments, at, strict=True)]
    return np.concatenate(at), np.concatenate(rows)


def _table(table: Linear) -> NDArray[np.uint16]:
    """The bits of BF16 of an embedding."""
    assert table.scale is None, "embeddings are not quantised"
    if table.weight.dtype == np.uint16:
        return table.weight
    return torch.from_numpy(table.weight).bfloat16().view(torch.uint16).numpy()

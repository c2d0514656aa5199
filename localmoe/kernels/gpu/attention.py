"""Which form of latent attention a session's tokens take, the scratch of both, and what is launched for each.

Few tokens: absorbed, over the paged latents themselves. Many: keys and values are expanded from the gathered latents,
for as many heads at a time as the scratch holds, and each is then read by all of the tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from localmoe.kernels.gpu.absorb import absorb_queries, expand_outputs
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.decode_attention import decode_attention, num_splits
from localmoe.kernels.gpu.launch import ceil_div
from localmoe.kernels.gpu.matrix import BLOCK, Activations, Weights
from localmoe.kernels.gpu.prefill_attention import prefill_attention
from localmoe.kernels.ops import PAGE_TOKENS, MlaShape

MOST_ABSORBED = 32  # tokens of a session in a run: above, expanding costs less arithmetic than staying absorbed
MOST_QUERIES = 64  # absorbed in one run, of all sessions
EXPANDED_BYTES = 256 << 20  # of keys and values at a time, unless one step of heads needs more

Product = Callable[[Activations, Weights, Tensor], None]


@dataclass(frozen=True)
class Room:
    """Scratch of the attention of one layer, in elements."""

    num_queries: int  # absorbed at most
    num_splits: int  # times queries, at most
    most_tokens: int  # that a session can have in the cache; 0: nothing is ever expanded
    num_heads: int  # expanded together
    shape: MlaShape

    def buffers(self) -> Sequence[tuple[torch.dtype, int]]:
        """Type and size of latent queries, latent outputs, the splits' two, gathered latents, keys and values."""
        s = self.shape
        width, tall = s.rank + s.rope_dim, self.num_heads * (s.nope_dim + s.v_dim)
        return (
            (torch.bfloat16, self.num_queries * s.num_heads * width),
            (torch.bfloat16, self.num_queries * s.num_heads * s.rank),
            (torch.float32, self.num_splits * s.num_heads * s.rank),
            (torch.float32, self.num_splits * s.num_heads),
            (torch.bfloat16, self.most_tokens * width),
            (torch.bfloat16, self.most_tokens * tall),
        )


def room_for(chip: Chip, shape: MlaShape, num_pages: int, max_tokens: int, is_fp8: bool) -> Room:
    """Room for up to `max_tokens` tokens a run over a cache of `num_pages`; `is_fp8`: kv_b has scales."""
    num_queries = most_queries(max_tokens)
    capacity = num_pages * PAGE_TOKENS
    splits = max(n * num_splits(chip, n, shape.num_heads, capacity) for n in range(1, num_queries + 1))
    most_tokens = capacity if max_tokens > MOST_ABSORBED else 0
    head_rows = shape.nope_dim + shape.v_dim
    step = BLOCK // math.gcd(BLOCK, head_rows) if is_fp8 else 1  # heads that begin at a row of scales
    fitting = EXPANDED_BYTES // max(most_tokens * head_rows * 2, 1)
    return Room(num_queries, splits, most_tokens, min(max(fitting // step, 1) * step, shape.num_heads), shape)


def most_queries(max_tokens: int) -> int:
    """Tokens that are absorbed in one run, at most."""
    return min(max_tokens, MOST_QUERIES)


@dataclass(frozen=True)
class Absorbed:
    """Rows [first, first + count) of a run: each with its session's pages and the tokens that it sees."""

    first: int
    count: int
    pages: Tensor  # [count, pages] int32
    lengths: Tensor  # [count] int32


@dataclass(frozen=True)
class Expanded:
    """Rows [first, first + count): the last of a session's `length` tokens."""

    first: int
    count: int
    length: int
    pages: Tensor  # int32


@dataclass(frozen=True)
class Attention:
    """One layer's attention, on scratch `latent_q`, ... `expanded` as Room.buffers has it, each flat."""

    chip: Chip
    kv_b: Weights
    room: Room
    product: Product
    latent_q: Tensor
    latent_out: Tensor
    partial: Tensor
    partial_log: Tensor
    gathered: Tensor
    expanded: Tensor

    def run(self, q: Tensor, cache: Tensor, pieces: Sequence[Absorbed | Expanded], out: Tensor) -> None:
        """Computes out [T, N * v] of q [T, N * (nope + rope)] over cache [pages, 64, R + rope], all bfloat16."""
        for piece in pieces:
            rows = slice(piece.first, piece.first + piece.count)
            if isinstance(piece, Absorbed):
                self._absorbed(q[rows], cache, piece, out[rows])
            else:
                self._expanded(q[rows], cache, piece, out[rows])

    def _absorbed(self, q: Tensor, cache: Tensor, piece: Absorbed, out: Tensor) -> None:
        s, num = self.room.shape, piece.count
        heads = q.unflatten(1, (s.num_heads, s.nope_dim + s.rope_dim))
        latent_q = _shaped(self.latent_q, num, s.num_heads, s.rank + s.rope_dim)
        latent_out = _shaped(self.latent_out, num, s.num_heads, s.rank)
        absorb_queries(heads[..., : s.nope_dim], self.kv_b, s, latent_q[..., : s.rank]).run()
        latent_q[..., s.rank :].copy_(heads[..., s.nope_dim :])
        splits = num_splits(self.chip, num, s.num_heads, len(cache) * PAGE_TOKENS)
        partial = _shaped(self.partial, num, splits, s.num_heads, s.rank)
        logs = _shaped(self.partial_log, num, splits, s.num_heads)
        for launch in decode_attention(
            self.chip, latent_q, cache, piece.pages, piece.lengths, s.softmax_scale, partial, logs, latent_out
        ):
            launch.run()
        expand_outputs(latent_out, self.kv_b, s, out.unflatten(1, (s.num_heads, s.v_dim))).run()

    def _expanded(self, q: Tensor, cache: Tensor, piece: Expanded, out: Tensor) -> None:
        s, num_pages = self.room.shape, ceil_div(piece.length, PAGE_TOKENS)
        rows = _shaped(self.gathered, num_pages, *cache.shape[1:])
        torch.index_select(cache, 0, piece.pages[:num_pages], out=rows)
        latents, keys = rows.flatten(0, 1)[: piece.length].split([s.rank, s.rope_dim], dim=1)
        head_rows, head_q = s.nope_dim + s.v_dim, s.nope_dim + s.rope_dim
        for first in range(0, s.num_heads, self.room.num_heads):
            end = min(first + self.room.num_heads, s.num_heads)
            kv = _shaped(self.expanded, piece.length, (end - first) * head_rows)
            self.product(Activations(latents), _rows(self.kv_b, first * head_rows, end * head_rows), kv)
            some_q, some_out = q[:, first * head_q : end * head_q], out[:, first * s.v_dim : end * s.v_dim]
            prefill_attention(self.chip, some_q, kv, keys, s, some_out).run()


def _shaped(scratch: Tensor, *shape: int) -> Tensor:
    """The beginning of a flat tensor."""
    return scratch[: math.prod(shape)].view(shape)


def _rows(w: Weights, start: int, stop: int) -> Weights:
    """Rows of one matrix; with scales `start` is at a block."""
    scale = None if w.scale is None else w.scale[:, start // BLOCK : ceil_div(stop, BLOCK)]
    return Weights(w.weight[:, start:stop], scale)

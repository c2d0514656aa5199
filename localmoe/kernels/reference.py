"""The reference dialect, the truth for the others: every op at once, in torch, in FP32, as plainly as it can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from localmoe.errors import CancelledError
from localmoe.kernels.ops import (
    NOT_COMPUTED,
    PAGE_TOKENS,
    CancelFlag,
    Experts,
    LayerCache,
    Linear,
    MlaShape,
    Placement,
    Rope,
    Router,
    Routing,
    Segment,
)

BLOCK = 128  # rows and columns that share one FP8 scale


@dataclass(frozen=True)
class Run:
    """One forward: its tokens, where they belong, and what the caller fixed."""

    ids: Tensor  # [T] int64
    positions: Tensor  # [T] float32
    segments: Sequence[Segment]
    all_logits: bool
    forced_experts: Tensor | None  # [moe layers, T, K] int64
    cancel: CancelFlag | None

    @property
    def selected(self) -> Tensor:
        """[S]: the rows whose logits are asked for."""
        if self.all_logits:
            return torch.arange(len(self.ids))
        return torch.tensor([s.count for s in self.segments]).cumsum(0) - 1


class ReferenceOps:
    """Ops[Tensor] for one run. All values are float32 [T, D] but for expert ids."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows = torch.arange(len(run.ids))  # which of the run's tokens the values stand for
        self.chosen: list[Tensor] = []  # of each MoE layer [T, K]

    def embedding(self, table: Linear) -> Tensor:
        return dequantised(table)[self.run.ids]

    def rms_norm(self, x: Tensor, weight: NDArray[np.float32], eps: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * tensor(weight)

    def linear(self, x: Tensor, w: Linear) -> Tensor:
        return x @ dequantised(w).T

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up

    def columns(self, x: Tensor, start: int, stop: int) -> Tensor:
        return x[:, start:stop]

    def rope(self, x: Tensor, rope: Rope, head_dim: int) -> Tensor:
        angle = self.run.positions[:, None, None] * tensor(rope.inv_freq)  # [T, 1, dim / 2]
        cos, sin = angle.cos() * rope.scale, angle.sin() * rope.scale
        heads = x.reshape(len(x), -1, head_dim).clone()
        rotated = heads[..., head_dim - rope.dim :]
        first, second = (
            (rotated[..., 0::2], rotated[..., 1::2]) if rope.interleaved else rotated.chunk(2, dim=-1)
        )  # views
        pair = first * cos - second * sin, second * cos + first * sin
        first.copy_(pair[0])
        second.copy_(pair[1])
        return heads.reshape(x.shape)

    def append_latent(self, cache: LayerCache, latent: Tensor, key: Tensor) -> None:
        data, rows = tensor(cache.data), torch.cat([latent, key], dim=-1).split([s.count for s in self.run.segments])
        for segment, new in zip(self.run.segments, rows, strict=True):
            page, row = places(segment, segment.start, segment.start + segment.count)
            data[page, row] = new.to(data.dtype)

    def mla_attention(self, q: Tensor, cache: LayerCache, kv_b: Linear, shape: MlaShape) -> Tensor:
        """Keys and values are expanded from the latents for every head: no absorption, no tiles."""
        expand, data = dequantised(kv_b).T, tensor(cache.data)
        outputs = []
        for segment, queries in zip(self.run.segments, q.split([s.count for s in self.run.segments]), strict=True):
            rows = data[places(segment, 0, segment.start + segment.count)].float()
            outputs.append(_attend(queries, rows, expand, shape))
        return torch.cat(outputs)

    def route(self, logits: Tensor, router: Router) -> Routing[Tensor]:
        self._stop_if_cancelled()
        scores = logits.sigmoid() if router.scoring == "sigmoid" else logits.softmax(-1)
        if self.run.forced_experts is None:
            ids = _choose(scores, router)
        else:
            ids = self.run.forced_experts[len(self.chosen)][self.rows]
        weights = scores.gather(1, ids)
        if router.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        chosen = torch.full((len(self.run.ids), router.top_k), NOT_COMPUTED)
        chosen[self.rows] = ids
        self.chosen.append(chosen)
        return Routing(ids, weights * router.scale)

    def experts(self, x: Tensor, routing: Routing[Tensor], experts: Experts) -> Tensor:
        total = torch.zeros_like(x)
        for e in routing.ids.unique().tolist():
            token, choice = torch.where(routing.ids == e)
            gate, up, down = (_expert(experts, e, matrix) for matrix in ("gate", "up", "down"))
            hidden = functional.silu(x[token] @ gate.T) * (x[token] @ up.T)
            total.index_add_(0, token, (hidden @ down.T) * routing.weights[token, choice, None])
        return total

    def select(self, x: Tensor) -> Tensor:
        self.rows = self.run.selected
        return x[self.rows]

    def _stop_if_cancelled(self) -> None:
        if self.run.cancel is not None and self.run.cancel.is_set():
            raise CancelledError("The run was cancelled.")


class ReferenceProgram:
    """ops.Program over a network written against the vocabulary: it is run anew for every forward."""

    def __init__(self, network: Callable[[ReferenceOps], Tensor], max_tokens: int) -> None:
        self.network = network
        self.max_tokens = max_tokens
        self.last_experts: NDArray[np.int32] | None = None  # [moe layers, T, K] of the last run, or NOT_COMPUTED

    @torch.inference_mode()
    def forward(
        self,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        urgent: bool = True,
        cancel: CancelFlag | None = None,
        all_logits: bool = False,
        forced_experts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """As ops.Program says."""
        assert len(ids) == sum(s.count for s in segments) <= self.max_tokens, "tokens do not fit the segments"
        positions = torch.cat([torch.arange(s.start, s.start + s.count) for s in segments]).float()
        forced = None if forced_experts is None else tensor(forced_experts).long()
        ops = ReferenceOps(Run(tensor(ids).long(), positions, segments, all_logits, forced, cancel))
        ops._stop_if_cancelled()
        logits = self.network(ops)
        self.last_experts = torch.stack(ops.chosen).int().numpy() if ops.chosen else None
        return logits.numpy()


def tensor(array: NDArray[Any]) -> Tensor:
    """The same memory as a tensor; uint16 is BF16."""
    if not array.flags.writeable:
        array = array.copy()  # torch has no read-only tensors
    found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if found.dtype == torch.uint16 else found


def dequantised(w: Linear) -> Tensor:
    """[rows, cols] float32."""
    weight = tensor(w.weight)
    if w.scale is None:
        return weight.float()
    rows, cols = weight.shape
    return weight.view(torch.float8_e4m3fn).float() * _by_element(w.scale)[:rows, :cols]


def places(segment: Segment, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Page and row of the session's tokens start..stop."""
    position = torch.arange(start, stop)
    return tensor(segment.table.pages).long()[position // PAGE_TOKENS], position % PAGE_TOKENS


def _attend(q: Tensor, rows: Tensor, expand: Tensor, shape: MlaShape) -> Tensor:
    """Queries [T, N * (nope + rope)] over cached rows [L, rank + rope], of which the last T are q's own: [T, N * v]."""
    count, length = len(q), len(rows)
    q = q.view(count, shape.num_heads, -1)
    latent, key_rope = rows.split([shape.rank, shape.rope_dim], dim=-1)
    key, value = (latent @ expand).view(length, shape.num_heads, -1).split([shape.nope_dim, shape.v_dim], dim=-1)
    q_nope, q_rope = q.split([shape.nope_dim, shape.rope_dim], dim=-1)
    scores = torch.einsum("tnd,lnd->ntl", q_nope, key) + torch.einsum("tnd,ld->ntl", q_rope, key_rope)
    future = torch.arange(length) > torch.arange(length - count, length)[:, None]
    weights = (scores * shape.softmax_scale).masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("ntl,lnv->tnv", weights, value).reshape(count, -1)


def _choose(scores: Tensor, router: Router) -> Tensor:
    """[T, K]: the best experts of the best groups; equal scores go to the lower id."""
    if router.bias is not None:
        scores = scores + tensor(router.bias)
    if router.num_groups > 1:
        groups = scores.view(len(scores), router.num_groups, -1)
        best = groups.max(-1).values if router.group_score == "max" else _best(groups, 2)[0].sum(-1)
        allowed = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _best(best, router.top_groups)[1], True)
        scores = groups.masked_fill(~allowed[..., None], -torch.inf).reshape(scores.shape)
    return _best(scores, router.top_k)[1]


def _best(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of the last axis and their indices, the lower index first where they are equal."""
    values, ids = x.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], ids[..., :count]


def _expert(experts: Experts, e: int, matrix: str) -> Tensor:
    """[rows, cols] float32: gate, up or down of expert e."""
    places = [(part.blob[e], getattr(part, matrix)) for part in experts.parts]
    return torch.cat([_rows(row, place) for row, place in places if place.rows])


def _rows(row: NDArray[np.uint8], p: Placement) -> Tensor:
    """[rows, cols] float32: what one part has of a matrix."""
    dtype = np.dtype(np.uint8 if p.dtype == "fp8" else np.uint16)
    weight = row[p.offset :][: p.rows * p.cols * dtype.itemsize].view(dtype).reshape(p.rows, p.cols)
    if p.scale_offset is None:
        return tensor(weight).float()
    before = p.first_row % BLOCK  # rows of the first block that another part has
    blocks = -(-(before + p.rows) // BLOCK), -(-p.cols // BLOCK)
    scale = row[p.scale_offset :][: 4 * blocks[0] * blocks[1]].view(np.float32).reshape(blocks)
    return tensor(weight).view(torch.float8_e4m3fn).float() * _by_element(scale)[before:][: p.rows, : p.cols]


def _by_element(scale: NDArray[np.float32]) -> Tensor:
    """The scales of blocks as those of their elements."""
    return tensor(scale).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)

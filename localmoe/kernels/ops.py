"""The vocabulary in which the network is written, once for all dialects.

Letters in shapes: T tokens of this run, H hidden, N heads, E experts, K chosen experts, R latent rank.
A dialect decides what a value `V` is: a tensor in `reference`, a recorded buffer in `cpu`.
An op may reuse the memory of its first argument where its docstring says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

PAGE_TOKENS = 64  # tokens in one page of the latent cache
NOT_COMPUTED = -1  # in a program's last_experts: this token's experts were not asked for


class Linear(Protocol):
    """y[T, rows] = x[T, cols] @ weight.T, the weight as the checkpoint has it."""

    @property
    def weight(self) -> NDArray[Any]:
        """[rows, cols]: uint8 (FP8 E4M3 codes), uint16 (BF16) or float32."""
        ...

    @property
    def scale(self) -> NDArray[np.float32] | None:
        """[ceil(rows/128), ceil(cols/128)], multiplied; only with FP8."""
        ...


class Experts(Protocol):
    """The routed experts of one layer, in parts that follow each other: each has a range of rows of every matrix."""

    @property
    def num_experts(self) -> int: ...

    @property
    def parts(self) -> "Sequence[ExpertPart]": ...


class ExpertPart(Protocol):
    """Rows of all experts that lie together, on one NUMA node, at a constant stride."""

    @property
    def blob(self) -> NDArray[np.uint8]:
        """[E, stride] bytes."""
        ...

    @property
    def gate(self) -> "Placement": ...

    @property
    def up(self) -> "Placement": ...

    @property
    def down(self) -> "Placement": ...


class Placement(Protocol):
    """Where rows of one matrix lie in a part's bytes of an expert."""

    @property
    def offset(self) -> int: ...

    @property
    def scale_offset(self) -> int | None:
        """Of the scales of every block that the rows touch; None: not quantised."""
        ...

    @property
    def first_row(self) -> int:
        """In the whole matrix: a multiple of 32."""
        ...

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...

    @property
    def dtype(self) -> Literal["fp8", "bf16"]: ...


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: angle = float32(position) * inv_freq, cos and sin times `scale`."""

    inv_freq: NDArray[np.float32]  # [dim / 2]
    scale: float = 1.0
    interleaved: bool = True  # pairs (0, 1), (2, 3); else (i, i + dim / 2)

    @property
    def dim(self) -> int:
        """Rotated elements of a head: its last ones."""
        return 2 * len(self.inv_freq)


@dataclass(frozen=True)
class MlaShape:
    """Multi-head latent attention. kv_b has num_heads * (nope + v) rows and `rank` columns."""

    num_heads: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    rank: int
    softmax_scale: float


@dataclass(frozen=True)
class Router:
    """How experts are chosen from the router's logits."""

    num_experts: int
    top_k: int
    num_groups: int = 1
    top_groups: int = 1
    scoring: Literal["sigmoid", "softmax"] = "sigmoid"
    group_score: Literal["top2", "max"] = "top2"  # a group's score: sum of its two best, or its best
    normalize: bool = True  # chosen weights sum to 1 (plus 1e-20) before scaling
    scale: float = 1.0
    bias: NDArray[np.float32] | None = None  # [E], added for selection only


class LayerCache(Protocol):
    """One layer of the latent cache: pages of PAGE_TOKENS rows (latent, then rotated key)."""

    @property
    def data(self) -> Any:
        """[pages, PAGE_TOKENS, rank + rope_dim], float32 or uint16 (BF16); on a GPU a bfloat16 tensor."""
        ...


V = TypeVar("V")


class Ops(Protocol[V]):
    """One dialect. A run has T token ids with positions, in one segment per session."""

    def embedding(self, table: Linear) -> V:
        """[T, H]: the table's rows for this run's token ids."""
        ...

    def rms_norm(self, x: V, weight: NDArray[np.float32], eps: float) -> V:
        """[T, D]: x / sqrt(mean(x^2) + eps) * weight."""
        ...

    def linear(self, x: V, w: Linear) -> V:
        """[T, rows]."""
        ...

    def add(self, x: V, y: V) -> V:
        """[T, D]; may reuse x."""
        ...

    def silu_mul(self, gate: V, up: V) -> V:
        """[T, D]: silu(gate) * up; may reuse gate."""
        ...

    def columns(self, x: V, start: int, stop: int) -> V:
        """[T, stop - start]: a view of x's columns; x stays valid."""
        ...

    def rope(self, x: V, rope: Rope, head_dim: int) -> V:
        """[T, heads * head_dim]: the last rope.dim elements of every head rotated by the token's position; reuses x."""
        ...

    def append_latent(self, cache: LayerCache, latent: V, key: V) -> None:
        """Writes latent [T, R] and key [T, rope_dim] at each token's position of its session."""
        ...

    def mla_attention(self, q: V, cache: LayerCache, kv_b: Linear, shape: MlaShape) -> V:
        """[T, N * v_dim]: causal attention of q [T, N * (nope + rope)] over the cached tokens, these included."""
        ...

    def route(self, logits: V, router: Router) -> "Routing[V]":
        """Chosen experts and their weights from logits [T, E]."""
        ...

    def experts(self, x: V, routing: "Routing[V]", experts: Experts) -> V:
        """[T, H]: the weighted sum of the chosen experts' silu(gate x) * (up x) down."""
        ...

    def select(self, x: V) -> V:
        """[S, D]: the rows whose logits this run asks for (the last token of each segment, or all)."""
        ...


@dataclass(frozen=True)
class Routing(Generic[V]):
    """Chosen experts of each token."""

    ids: V  # [T, K] int32
    weights: V  # [T, K] float32


class PageTable(Protocol):
    """A session's pages, in order."""

    @property
    def pages(self) -> NDArray[np.int32]:
        """Page numbers; token p lies in pages[p // PAGE_TOKENS]."""
        ...


@dataclass(frozen=True)
class Segment:
    """One session's tokens in a run; its table has room for start + count tokens already."""

    table: PageTable
    start: int  # tokens in the cache before this run
    count: int


class CancelFlag(Protocol):
    """A flag in native memory that is looked at between jobs."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def clear(self) -> None: ...


class Program(Protocol):
    """The network, ready for any number of tokens up to max_tokens."""

    max_tokens: int

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
        """Logits [segments, vocab] of each segment's last token, or [T, vocab] with `all_logits`.

        `ids` [T] holds the segments' tokens one after the other. `forced_experts` [moe layers, T, K] replaces
        the choice of experts (tests). Raises CancelledError when `cancel`
        was set; the caches' new rows are then undefined.
        """
        ...

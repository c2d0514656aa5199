"""A small network as one step program: matrices as a model uses them, and what a layer takes beside them.

Each layer has weights of its own in the table, so that a step finds little of them in caches. Its experts lie anywhere
in the table, as chosen ones do, and each token goes to all of them: how many tokens share a matrix is known.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.bench.kernel_program import SCALE, KernelProgram, Timed, Workers, scales

ALIGN_BYTES = 256
Bytes = NDArray[np.uint8]
FLOAT_BYTES = 4
MOST_LAYERS = 8
MOST_EXPERTS = 512  # among which a layer's are chosen


@dataclass(frozen=True, slots=True)
class Network:
    """Sizes of its layers: Moonlight's and DeepSeek-V2-Lite's, with V3's queries."""

    num_layers: int = 1
    is_bf16: bool = False
    hidden: int = 2048
    q_lora: int = 768
    rank: int = 512
    heads: int = 16
    nope: int = 128
    rope: int = 64
    value: int = 128
    inter: int = 1408
    top_k: int = 6
    num_shared: int = 2

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Of a layer's attention without kv_b and its shared experts: rows and columns."""
        attention = ((self.q_lora, self.hidden), (self.q_dim, self.q_lora), (self.latent, self.hidden))
        shared = self.num_shared * self.inter
        ffn = ((shared, self.hidden), (shared, self.hidden), (self.hidden, shared))
        return (*attention, (self.hidden, self.heads * self.value), *ffn)

    @property
    def kv_b(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.heads * (self.nope + self.value), self.rank

    @property
    def expert(self) -> tuple[tuple[int, int], ...]:
        """Gate, up and down of an expert: rows and columns."""
        return (self.inter, self.hidden), (self.inter, self.hidden), (self.hidden, self.inter)

    @property
    def q_dim(self) -> int:
        """Of a token's queries."""
        return self.heads * (self.nope + self.rope)

    @property
    def latent(self) -> int:
        """Of a row in the cache."""
        return self.rank + self.rope

    @property
    def expert_count(self) -> int:
        """Weights of one expert."""
        return sum(rows * cols for rows, cols in self.expert)

    @property
    def count(self) -> int:
        """Weights of a layer without kv_b and router that a token uses."""
        return sum(rows * cols for rows, cols in self.matrices) + self.top_k * self.expert_count

    @property
    def kv_b_count(self) -> int:
        """Weights of kv_b."""
        return self.kv_b[0] * self.kv_b[1]

    @property
    def expert_stride(self) -> int:
        """Bytes of an expert with its scales."""
        return _aligned(self.expert_count * self.element_bytes + self.scale_bytes)

    @property
    def scale_bytes(self) -> int:
        """Of an expert."""
        return 0 if self.is_bf16 else FLOAT_BYTES * sum(scales(*shape).size for shape in self.expert)

    @property
    def element_bytes(self) -> int:
        """Of a weight."""
        return 2 if self.is_bf16 else 1

    @property
    def layer_bytes(self) -> int:
        """Of a layer in the table, with the experts that it uses."""
        return self.matrix_bytes + self.top_k * self.expert_stride

    @property
    def matrix_bytes(self) -> int:
        """Of a layer in the table, without experts."""
        return sum(_aligned(rows * cols * self.element_bytes) for rows, cols in (*self.matrices, self.kv_b))

    @property
    def activation_bytes(self) -> int:
        """What a layer reads and writes of one token's activations; counted as the cost model counts them."""
        hidden, heads = 14 * self.hidden, 3 * self.q_dim + 2 * self.q_lora + 4 * self.latent
        shared, routed = 6 * self.num_shared * self.inter, self.top_k * (4 * self.hidden + 6 * self.inter)
        return FLOAT_BYTES * (hidden + heads + 2 * self.heads * self.value + shared + routed)

    def prompt_flops(self, num_tokens: int) -> float:
        """A layer's attention of a prompt to itself."""
        keys_read = num_tokens * (num_tokens + 1) // 2
        scores = 2.0 * self.heads * (self.nope + self.rope + self.value) * keys_read
        return scores + 2.0 * num_tokens * self.kv_b_count


FEW_WORKERS = 8  # whom matrices of the size below keep busy
LARGE = Network(hidden=7168, q_lora=1536, heads=128, inter=2048, top_k=8, num_shared=1)  # DeepSeek-V3's
TINY = Network(MOST_LAYERS, False, 128, 128, 64, 2, 32, 32, 32, 64, 4, 1)  # nearly nothing but a layer's overhead


def fitting(net: Network, table: Bytes, most_layers: int = MOST_LAYERS) -> Network | None:
    """`net` with as many layers as the table holds; None where it holds none."""
    num_layers = min(most_layers, table.size // net.layer_bytes)
    return replace(net, num_layers=num_layers) if num_layers else None


def recorded(workers: Workers, table: Bytes, net: Network, num_tokens: int) -> Callable[[], float]:
    """The network for so many tokens: a call runs it and says how many seconds that took."""
    recorder = _Recorder(workers, table, net, num_tokens)
    for _ in range(net.num_layers):
        recorder.layer()
    timed, chosen = recorder.ready(), recorder.chosen()
    return lambda: timed.seconds(chosen)


class _Recorder:
    """Writes layers down as model/decoder.py does, with weights from the table."""

    def __init__(self, workers: Workers, table: Bytes, net: Network, num_tokens: int) -> None:
        self._program = KernelProgram(workers, num_tokens)
        self._ops = self._program.recorded
        self._table, self._net, self._num_tokens = table, net, num_tokens
        self._at = 0
        start = _aligned(net.num_layers * net.matrix_bytes)
        num_experts = min(MOST_EXPERTS, (table.size - start) // net.expert_stride)
        self._experts = table[start : start + num_experts * net.expert_stride].reshape(num_experts, net.expert_stride)
        if not net.is_bf16:
            self._experts[:, net.expert_count : net.expert_count + net.scale_bytes].view(np.float32)[:] = SCALE
        self._places: dict[tuple[str, int], int] = {}
        self._frequencies = (10000.0 ** -(np.arange(0, net.rope, 2) / net.rope)).astype(np.float32)
        self._x = self._program.input(net.hidden)

    def ready(self) -> Timed:
        """The program."""
        return self._program.ready()

    def chosen(self) -> NDArray[np.int32]:
        """[layers, tokens, K]: other experts in each layer, the same for all tokens."""
        net = self._net
        drawn = np.random.default_rng(0).permutation(len(self._experts))[: net.num_layers * net.top_k]
        ids = drawn.reshape(net.num_layers, 1, net.top_k)
        return np.ascontiguousarray(np.broadcast_to(ids, (net.num_layers, self._num_tokens, net.top_k)), np.int32)

    def layer(self) -> None:
        """Attention, then the mixture."""
        ops, net, x = self._ops, self._net, self._x
        *projections, out, gate, up, down = net.matrices
        attended = self._attention(self._norm(x, net.hidden, "normed"), projections)
        ops.add(x, self._linear(attended, out, "attention"), x)
        normed = self._norm(x, net.hidden, "normed")
        mixed = self._mixture(normed)
        product, other = self._linear(normed, gate, "gate"), self._linear(normed, up, "up")
        ops.silu_mul(product, other, product)
        ops.add(mixed, self._linear(product, down, "down"), mixed)
        ops.add(x, mixed, x)

    def _attention(self, x: native.Rows, projections: list[tuple[int, int]]) -> native.Rows:
        ops, net = self._ops, self._net
        q_a, q_b, kv_a = projections
        q = self._linear(self._norm(self._linear(x, q_a, "q_a"), net.q_lora, "q_a normed"), q_b, "q")
        ops.rope(q, self._frequencies, 1.0, True, net.nope + net.rope)
        self._linear(x, kv_a, "kv")
        latent = self._norm(self._columns("kv", net.latent, 0, net.rank), net.rank, "latent")
        key = self._columns("kv", net.latent, net.rank, net.rope)
        ops.rope(key, self._frequencies, 1.0, True, net.rope)
        cache = np.zeros((-(-self._num_tokens // 64), 64, net.latent), np.float32)
        ops.append_latent(cache, latent, key)
        attended = self._rows("attended", net.heads * net.value)
        shape = native.MlaShape(net.heads, net.nope, net.rope, net.value, net.rank, (net.nope + net.rope) ** -0.5)
        ops.mla_attention(q, cache, *self._matrix(*net.kv_b), shape, attended)
        return attended

    def _mixture(self, x: native.Rows) -> native.Rows:
        """The experts; a router's matrix is left out, being small."""
        net, count = self._net, len(self._experts)
        logits, weights = self._rows("logits", count), self._rows("weights", net.top_k)
        shape = native.RouterShape(count, net.top_k, 1, 1, True, True, True, 1.0)
        routed, out = self._ops.route(logits, shape, None, weights), self._rows("mixed", net.hidden)
        self._ops.experts(x, routed, weights, [native.ExpertPart(self._experts, *_placements(net))], out)
        return out

    def _linear(self, x: native.Rows, shape: tuple[int, int], name: str) -> native.Rows:
        out = self._rows(name, shape[0])
        self._ops.linear(x, *self._matrix(*shape), out)
        return out

    def _norm(self, x: native.Rows, width: int, name: str) -> native.Rows:
        out = self._rows(name, width)
        self._ops.rms_norm(x, np.ones(width, np.float32), 1e-6, out)
        return out

    def _rows(self, name: str, width: int) -> native.Rows:
        return self._columns(name, width, 0, width)

    def _columns(self, name: str, stride: int, start: int, width: int) -> native.Rows:
        """A part of a buffer; the next layer takes the same one."""
        if (name, stride) not in self._places:
            self._places[name, stride] = self._program.place(stride)
        return native.Rows(self._places[name, stride] + start, stride, width, False)

    def _matrix(self, rows: int, cols: int) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Weights and scales."""
        part = self._take(rows * cols * self._net.element_bytes)
        if self._net.is_bf16:
            return part.view(np.uint16).reshape(rows, cols), None
        return part.reshape(rows, cols), scales(rows, cols)

    def _take(self, num_bytes: int) -> Bytes:
        start, self._at = self._at, self._at + _aligned(num_bytes)
        return self._table[start : start + num_bytes]


def _placements(net: Network) -> Iterator[native.ExpertMatrix]:
    """Where gate, up and down lie in an expert, and their scales behind them."""
    start, scale = 0, net.expert_count
    for rows, cols in net.expert:
        yield native.ExpertMatrix(start, None if net.is_bf16 else scale, rows, cols, net.is_bf16)
        start += rows * cols * net.element_bytes
        scale += FLOAT_BYTES * scales(rows, cols).size


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES

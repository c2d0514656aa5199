"""The GPU dialect: records the ops with the buffers and the scratch that the kernels want, to be run by GpuProgram.

The residual stream, routing and sums over experts are float32, all other activations bfloat16. What a kernel does in
one pass is recorded as one call: a sum and the norm behind it; the latent's norm, the key's rotation and their append.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from localmoe.kernels.gpu.attention import Room, room_for
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.launch import ceil_div
from localmoe.kernels.gpu.matrix import BLOCK, FP8
from localmoe.kernels.ops import Experts, LayerCache, Linear, MlaShape, Rope, Router, Routing
from localmoe.kernels.recording import Call, Recording, Value, place_buffers
from localmoe.kernels.segments import Stop, StopKind

ALIGN_BYTES = 256  # buffers begin where a matrix may


class GpuOps(Recording):
    """Ops[Value] for one chip. Calls' methods are those of steps.Steps; the stops are SegmentOps'."""

    def __init__(self, chip: Chip, max_tokens: int) -> None:
        super().__init__()
        self.chip = chip
        self.max_tokens = max_tokens
        self.dtypes: list[torch.dtype] = []  # of each buffer
        self.rows: list[int | None] = []  # of each buffer; None: the run's tokens, or those selected
        self.stops: list[Stop] = []
        self.table: Linear | None = None  # the embedding
        self.rope_rule: Rope | None = None
        self.routed_selected: list[bool] = []  # of each routed layer: whether it sees selected rows only
        self.num_experts = 0
        self.top_k = 0
        self._codes: dict[Value, tuple[Value, Value]] = {}  # of what is quantised already: codes and scales

    def embedding(self, table: Linear) -> Value:
        self.table = table
        out = self._buffer(table.weight.shape[1], dtype=torch.float32)
        self._call("embedding", out)
        return out

    def rms_norm(self, x: Value, weight: NDArray[np.float32], eps: float) -> Value:
        out = self._buffer(x.width, x.selected)
        last = self.calls[-1] if self.calls else None
        if last and last.method == "add" and last.args[0] == x:
            self.calls.pop()
            self._call("add_norm", x, last.args[1], weight, eps, out)
        else:
            self._call("rms_norm", x, weight, eps, out)
        return out

    def linear(self, x: Value, w: Linear) -> Value:
        codes = self._quantised(x) if self._takes_fp8(w.scale) else None
        out = self._buffer(w.weight.shape[0], x.selected)
        self._call("linear", x, *(codes or (None, None)), w, out)
        return out

    def add(self, x: Value, y: Value) -> Value:
        self._call("add", x, y)
        self._written(x)
        return x

    def silu_mul(self, gate: Value, up: Value) -> Value:
        self._call("silu_mul", gate, up)
        self._written(gate)
        return gate

    def columns(self, x: Value, start: int, stop: int) -> Value:
        assert 0 <= start < stop <= x.width, "no such columns"
        return replace(x, start=x.start + start, width=stop - start)

    def rope(self, x: Value, rope: Rope, head_dim: int) -> Value:
        self.rope_rule = self.rope_rule or rope
        assert np.array_equal(rope.inv_freq, self.rope_rule.inv_freq), "all layers rotate alike"
        self._call("rope", x, rope.interleaved, head_dim)
        self._written(x)
        return x

    def append_latent(self, cache: LayerCache, latent: Value, key: Value) -> None:
        norm, rotation = self._pop_latent(latent, key)
        kv, weight, eps, _ = norm.args
        whole = replace(kv, width=kv.width + key.width)
        assert key == replace(whole, start=kv.start + kv.width, width=key.width), "the key lies behind the latent"
        self._call("append_latent", whole, weight, eps, rotation.args[1], cache)
        self._stop("latents")

    def mla_attention(self, q: Value, cache: LayerCache, kv_b: Linear, shape: MlaShape) -> Value:
        out = self._buffer(shape.num_heads * shape.v_dim)
        room = room_for(self.chip, shape, len(cache.data), self.max_tokens, kv_b.scale is not None)
        self._call("mla_attention", q, cache, kv_b, shape, room, *self._room(room), out)
        return out

    def route(self, logits: Value, router: Router) -> Routing[Value]:
        self.dtypes[logits.buffer] = torch.float32
        weights = self._buffer(router.top_k, logits.selected, torch.float32)
        ids = replace(weights, buffer=len(self.routed_selected))  # a routed layer's number in place of a buffer's
        self._call("route", logits, router, ids.buffer, weights)
        self.routed_selected.append(logits.selected)
        self.num_experts, self.top_k = max(self.num_experts, router.num_experts), router.top_k
        return Routing(ids, weights)

    def experts(self, x: Value, routing: Routing[Value], experts: Experts) -> Value:
        is_fp8 = self._takes_fp8(experts.parts[0].gate.scale_offset)
        codes = self._quantised(x) if is_fp8 else (None, None)
        inter = sum(part.gate.rows for part in experts.parts)
        out = self._buffer(x.width, x.selected, torch.float32)
        hidden, y = (self._buffer(self.top_k * width, x.selected) for width in (inter, x.width))
        between = self._codes_for(hidden, self.top_k, inter) if is_fp8 else (None, None)
        self._call("experts", x, *codes, routing.ids.buffer, routing.weights, experts, hidden, *between, y, out)
        self._stop("experts", x, out, routing.weights)
        return out

    def select(self, x: Value) -> Value:
        out = self._buffer(x.width, True, self.dtypes[x.buffer])
        self._call("select", x, out)
        return out

    def given(self, width: int, selected: bool = False) -> Value:
        """[T, width]: rows that others fill before the run goes on."""
        out = self._buffer(width, selected)
        self._call("hold", out)
        self._stop("given", out)
        return out

    def offered(self, x: Value) -> Callable[[], Value]:
        """Rows that others make of `x`, which they may read from here on. Called where [T, H] of theirs are due."""
        self._call("hold", x)
        self._stop("offer", x)
        return lambda: self._exchanged(x)

    def _exchanged(self, x: Value) -> Value:
        out, part = (self._buffer(x.width, x.selected, torch.float32) for _ in range(2))
        self._call("hold", x, out, part)
        self._stop("exchange", x, out, None, part)
        return out

    def plan(self, output: Value | None) -> tuple[list[int], int]:
        """Offsets of all buffers in one arena, and its bytes. The logits, `output`, are no part of it."""
        sizes = []
        for buffer, (width, dtype, rows) in enumerate(zip(self.widths, self.dtypes, self.rows, strict=True)):
            nbytes = width * dtype.itemsize * (self.max_tokens if rows is None else rows)
            is_output = output is not None and output.buffer == buffer
            sizes.append(0 if is_output else ceil_div(nbytes, ALIGN_BYTES) * ALIGN_BYTES)
        return place_buffers(self.calls, sizes)

    def _buffer(
        self, width: int, selected: bool = False, dtype: torch.dtype = torch.bfloat16, rows: int | None = None
    ) -> Value:
        self.dtypes.append(dtype)
        self.rows.append(rows)
        return self._new(width, selected)

    def _takes_fp8(self, scale: Any) -> bool:
        return scale is not None and self.chip.has_fp8

    def _quantised(self, x: Value) -> tuple[Value, Value]:
        """Codes and scales of `x`, made once for all that read it."""
        if x not in self._codes:
            codes, scales = self._codes_for(x, 1, x.width)
            self._call("quantise", x, codes, scales)
            self._codes[x] = codes, scales
        return self._codes[x]

    def _codes_for(self, x: Value, count: int, width: int) -> tuple[Value, Value]:
        codes = self._buffer(count * width, x.selected, FP8)
        return codes, self._buffer(count * ceil_div(width, BLOCK), x.selected, torch.float32)

    def _written(self, x: Value) -> None:
        """What was made of its buffer before is out of date."""
        self._codes = {value: codes for value, codes in self._codes.items() if value.buffer != x.buffer}

    def _pop_latent(self, latent: Value, key: Value) -> tuple[Call, Call]:
        """The norm and the rotation that made them, which the kernel does itself."""
        rotation, norm = self.calls.pop(), self.calls.pop()
        assert rotation.method == "rope" and rotation.args[0] == key, "the key is rotated last"
        assert norm.method == "rms_norm" and norm.args[3] == latent, "the latent is normed before"
        assert latent.buffer == len(self.widths) - 1, "the latent's buffer is the newest"
        for of_buffers in (self.widths, self.dtypes, self.rows):
            of_buffers.pop()
        return norm, rotation

    def _room(self, room: Room) -> Sequence[Value]:
        """Scratch of one call."""
        return [self._buffer(size, dtype=dtype, rows=1) for dtype, size in room.buffers()]

    def _stop(self, kind: StopKind, *values: Value | None) -> None:
        layer = sum(stop.kind == kind for stop in self.stops)
        self.stops.append(Stop(kind, len(self.calls) - 1, layer, *values))

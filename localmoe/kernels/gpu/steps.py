"""What each recorded call launches. All are issued to the current stream; nothing waits for the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from localmoe.kernels.gpu import latent, norm
from localmoe.kernels.gpu.attention import Attention, Room
from localmoe.kernels.gpu.inputs import Inputs
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.linear import linear, num_splits
from localmoe.kernels.gpu.matrix import Activations, Weights
from localmoe.kernels.gpu.mixture import Choices, Mixture
from localmoe.kernels.gpu.quantise import quantise
from localmoe.kernels.gpu.resident import Resident
from localmoe.kernels.gpu.route import route
from localmoe.kernels.ops import Experts, LayerCache, Linear, MlaShape, Router
from localmoe.kernels.segments import Group


class Steps:
    """Calls by name, as ops.GpuOps records them, Values having become tensors of this run's rows."""

    def __init__(
        self, weights: Resident, inputs: Inputs, ids: Tensor, choices: Choices, workspace: Tensor, forced: bool = False
    ) -> None:
        """`ids` [routed layers, max tokens, K] int32; `workspace` float32, as linear.workspace_floats has it."""
        self.forced = forced  # the run's choices of experts are there already
        self.stay: Callable[[Launch], None] | None = None  # as Mixture has it
        self._weights = weights
        self._inputs = inputs
        self._ids = ids
        self._choices = choices
        self._workspace = workspace
        self._chip = weights.gpu.chip

    def embedding(self, out: Tensor) -> None:
        out.copy_(self._inputs.embedded)

    def rms_norm(self, x: Tensor, weight: Any, eps: float, out: Tensor) -> None:
        norm.rms_norm(x, self._weights.vector(weight), eps, out).run()

    def add_norm(self, residual: Tensor, x: Tensor, weight: Any, eps: float, out: Tensor) -> None:
        norm.rms_norm(x, self._weights.vector(weight), eps, out, residual).run()

    def quantise(self, x: Tensor, codes: Tensor, scales: Tensor) -> None:
        quantise(x, codes, scales).run()

    def linear(self, x: Tensor, codes: Tensor | None, scales: Tensor | None, w: Linear, out: Tensor) -> None:
        found = Activations(x) if codes is None else Activations(codes, scales)
        self._product(found, self._weights.matrix(w), out)

    def add(self, x: Tensor, y: Tensor) -> None:
        x.add_(y)

    def silu_mul(self, gate: Tensor, up: Tensor) -> None:
        norm.silu_mul(gate, up).run()

    def rope(self, x: Tensor, interleaved: bool, head_dim: int) -> None:
        norm.rotate(x, self._inputs.rotation, head_dim, interleaved).run()

    def append_latent(self, kv: Tensor, weight: Any, eps: float, interleaved: bool, cache: LayerCache) -> None:
        rows, rotation = self._inputs.cache_rows, self._inputs.rotation
        latent.append_latent(kv, self._weights.vector(weight), eps, rotation, interleaved, rows, _pages(cache)).run()

    def mla_attention(
        self, q: Tensor, cache: LayerCache, kv_b: Linear, shape: MlaShape, room: Room, *scratch: Any
    ) -> None:
        *flat, out = scratch
        matrix = self._weights.matrix(kv_b)
        attention = Attention(self._chip, matrix, room, self._product, *(piece[0] for piece in flat))
        attention.run(q, _pages(cache), self._inputs.pieces(), out)

    def route(self, logits: Tensor, router: Router, layer: int, weights: Tensor) -> None:
        bias = None if router.bias is None else self._weights.vector(router.bias)
        ids = self._ids[layer, : len(logits)]
        if self.forced:
            _weigh(logits, router, ids, weights)
        else:
            route(logits, router, bias, ids, weights).run()
        self._choices.sort(ids, router.num_experts)

    def select(self, x: Tensor, out: Tensor) -> None:
        torch.index_select(x, 0, self._inputs.selected, out=out)

    def hold(self, *values: Tensor) -> None:
        """Others read and write them meanwhile."""

    def experts(
        self, group: Group, x: Tensor, codes: Tensor | None, scales: Tensor | None, layer: int, weights: Tensor,
        experts: Experts, hidden: Tensor, hidden_codes: Tensor | None, hidden_scales: Tensor | None, y: Tensor,
        out: Tensor,
    ) -> None:  # fmt: skip
        """One group's part. Experts that have places are sorted anew: by their places."""
        if group.places is not None:
            ids = self._ids[layer, : len(x)].long()
            self._choices.sort(self._weights.vector(group.places)[ids], group.count)
        top_k = weights.shape[1]
        wide, between = hidden.unflatten(1, (top_k, -1)).flatten(0, 1), None
        if hidden_codes is not None and hidden_scales is not None:
            between = Activations(*(c.unflatten(1, (top_k, -1)).flatten(0, 1) for c in (hidden_codes, hidden_scales)))
        into = Activations(x) if codes is None else Activations(codes, scales)
        tall = y.unflatten(1, (top_k, -1)).flatten(0, 1)
        Mixture(self._chip, experts, into, weights, wide, between, tall, out, self.stay).add(group, self._choices)

    def _product(self, x: Activations, w: Weights, out: Tensor) -> None:
        splits = num_splits(self._chip, len(x.values), w, x.is_quantised)
        partial = None
        if splits > 1:
            partial = self._workspace[: splits * out.numel()].view(splits, *out.shape)
        for launch in linear(self._chip, x, w, out, partial):
            launch.run()


def _pages(cache: LayerCache) -> Tensor:
    """[pages, 64, width] bfloat16: of a layer whose pages lie on the device."""
    pages: Any = cache.data
    assert isinstance(pages, Tensor), "these latents do not lie on the device"
    return pages


def _weigh(logits: Tensor, router: Router, ids: Tensor, weights: Tensor) -> None:
    """The weights of experts that were chosen before; for tests."""
    scores = logits.sigmoid() if router.scoring == "sigmoid" else logits.softmax(-1)
    found = scores.gather(1, ids.long())
    if router.normalize:
        found = found / (found.sum(-1, keepdim=True) + 1e-20)
    weights.copy_(found * router.scale)

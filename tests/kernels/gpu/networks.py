"""Small networks, the reference's answers, and programs of the GPU dialect that run them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "model"))

import numpy as np
import parity
import torch
from arrays import quantised
from tiny import make_checkpoint

from localmoe.devices.turns import Askers
from localmoe.kernels.gpu.attention import MOST_ABSORBED
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.ops import Experts, LayerCache, Linear, MlaShape, Rope, Routing, Segment
from localmoe.kernels.reference import ReferenceOps, ReferenceProgram, dequantised, places, tensor
from localmoe.kernels.segments import Group, Tokens
from localmoe.model.cache import LatentCache
from localmoe.model.decoder import decode
from localmoe.model.gpu_programs import GpuPrograms

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "intermediate_size": 160,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "num_attention_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
NUM_PAGES = 8
FORMS: dict[str, tuple[int, dict[str, Any]]] = {  # of products: a chip to stand for, and the checkpoint
    "fp8": (120, {}),
    "decoded": (86, {}),
    "bf16": (86, {"quantization_config": None}),
}


def network(tmp_path_factory, name: str, nodes: Sequence[int] = (), **overrides: Any) -> parity.Case:
    folder = make_checkpoint(tmp_path_factory.mktemp(name) / "model", 0, **(SHAPE | overrides))
    return parity.open_case(folder, nodes=nodes)


class RoundedOps(ReferenceOps):
    """The reference with what the kernels keep in BF16, and in FP8 where matrix units multiply it, kept so."""

    is_quantised = False
    exact_rows: tuple[int, ...] = ()  # of matrices whose products stay float32: the router's and the head's

    def rms_norm(self, x: torch.Tensor, weight: np.ndarray, eps: float) -> torch.Tensor:
        return rounded(super().rms_norm(x, weight, eps))

    def linear(self, x: torch.Tensor, w: Linear) -> torch.Tensor:
        y = super().linear(self._operand(x, w.scale), w)
        return y if len(w.weight) in self.exact_rows else rounded(y)

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return rounded(super().silu_mul(gate, up))

    def rope(self, x: torch.Tensor, rope: Rope, head_dim: int) -> torch.Tensor:
        return rounded(super().rope(x, rope, head_dim))

    def mla_attention(self, q: torch.Tensor, cache: LayerCache, kv_b: Linear, shape: MlaShape) -> torch.Tensor:
        """In the form that so many tokens of a session take: what each of them rounds within is rounded too."""
        outputs = []
        for segment, queries in zip(self.run.segments, q.split([s.count for s in self.run.segments]), strict=True):
            rows = tensor(cache.data)[places(segment, 0, segment.start + segment.count)].float()
            form = absorbed if segment.count <= MOST_ABSORBED else expanded
            outputs.append(form(queries, rows, dequantised(kv_b), shape))
        return rounded(torch.cat(outputs))

    def experts(self, x: torch.Tensor, routing: Routing, experts: Experts) -> torch.Tensor:
        total = torch.zeros_like(x)
        for e in routing.ids.unique().tolist():
            token, choice = torch.where(routing.ids == e)
            gate, up, down = (dequantised(w) for w in experts.expert(e))
            scale = experts.parts[0].gate.scale_offset
            into = self._operand(x[token], scale)
            hidden = self._operand(rounded(torch.nn.functional.silu(into @ gate.T) * (into @ up.T)), scale)
            total.index_add_(0, token, rounded(hidden @ down.T) * routing.weights[token, choice, None])
        return total

    def _operand(self, x: torch.Tensor, scale: object) -> torch.Tensor:
        return x if scale is None or not self.is_quantised else quantised(x, torch.device("cpu"))[1]


def expanded(q: torch.Tensor, rows: torch.Tensor, kv_b: torch.Tensor, shape: MlaShape) -> torch.Tensor:
    """Keys and values of all heads, rounded, are attended to."""
    latent, rope = rows.split([shape.rank, shape.rope_dim], dim=-1)
    kv = rounded(latent @ kv_b.T).view(len(rows), shape.num_heads, -1)
    key = torch.cat([kv[..., : shape.nope_dim], rope[:, None].expand(-1, shape.num_heads, -1)], dim=-1)
    return attend(q.view(len(q), shape.num_heads, -1), key, kv[..., shape.nope_dim :], shape).flatten(1)


def absorbed(q: torch.Tensor, rows: torch.Tensor, kv_b: torch.Tensor, shape: MlaShape) -> torch.Tensor:
    """Queries and outputs in the latent space are rounded; so is kv_b, which is decoded to BF16 on every chip."""
    to_key, to_value = rounded(kv_b).view(shape.num_heads, -1, shape.rank).split([shape.nope_dim, shape.v_dim], dim=1)
    nope, rope = q.view(len(q), shape.num_heads, -1).split([shape.nope_dim, shape.rope_dim], dim=-1)
    latent_q = torch.cat([rounded(torch.einsum("tnd,ndr->tnr", nope, to_key)), rope], dim=-1)
    shared = rows[:, None].expand(-1, shape.num_heads, -1)
    found = rounded(attend(latent_q, shared, shared[..., : shape.rank], shape))
    return torch.einsum("tnr,nvr->tnv", found, to_value).flatten(1)


def attend(q: torch.Tensor, key: torch.Tensor, value: torch.Tensor, shape: MlaShape) -> torch.Tensor:
    """[T, N, V] of q [T, N, D], the last ones of key [L, N, D] and value [L, N, V]; weights are rounded."""
    count, length = len(q), len(key)
    scores = torch.einsum("tnd,lnd->ntl", q, key) * shape.softmax_scale
    future = torch.arange(length) > torch.arange(length - count, length)[:, None]
    scores = scores.masked_fill(future, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("ntl,lnv->tnv", rounded(weights), value) / weights.sum(-1).T[..., None]


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


@dataclass(frozen=True)
class Reference:
    """Logits of one session's tokens by the reference over a BF16 cache: as the kernels round, or with exact values."""

    case: parity.Case
    is_quantised: bool = False
    is_exact: bool = False

    def __call__(self, ids: np.ndarray, forced: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """[T, V], and the experts [moe layers, T, K]."""
        cache = self.case.cache("bf16", NUM_PAGES)
        table = parity.reserved(cache.new_table(), len(ids))
        program = self.over(cache)
        logits = program.forward(ids, [Segment(table, 0, len(ids))], all_logits=True, forced_experts=forced)
        return logits, program.last_experts

    def over(self, cache: LatentCache) -> ReferenceProgram:
        """For any number of tokens."""
        return ReferenceProgram(lambda ops: decode(self._ops(ops), self.case.model, cache), parity.NUM_TOKENS)

    def _ops(self, plain: ReferenceOps) -> ReferenceOps:
        if self.is_exact:
            return plain
        ops = RoundedOps(plain.run)
        ops.chosen = plain.chosen  # which is what the program tells
        ops.is_quantised = self.is_quantised
        ops.exact_rows = (self.case.config.num_experts, self.case.config.vocab)
        return ops


class Runner:
    """ops.Program of a whole network of the GPU dialect, its experts in groups."""

    def __init__(
        self, case: parity.Case, cache: LatentCache, device: torch.device, chip: Chip, max_tokens: int, group: int = 3,
        askers: Askers | None = None,
    ) -> None:  # fmt: skip
        self.programs = GpuPrograms(case.model, cache, str(device), chip, askers)
        self.program = self.programs.whole(max_tokens)
        self.max_tokens = max_tokens
        self._layers = [layer.moe.experts for layer in case.model.layers if layer.moe]
        self._device = device
        self._group = group
        self._vocab = case.config.vocab

    def forward(self, ids, segments, *, urgent=True, cancel=None, all_logits=False, forced_experts=None):
        tokens = Tokens.of_run(
            ids,
            segments,
            all_logits=all_logits,
            forced_experts=forced_experts,
            most=self.max_tokens,
            vocab=self._vocab,
        )
        self.program.begin(tokens, cancel)
        first = 0
        for stop in (s for s in self.program.stops if s.kind == "experts"):
            self.program.run(first, stop.op)
            for group in self.groups(stop.layer):
                self.program.run_group(stop, group)
            first = stop.op + 1
        self.program.run(first, self.program.num_ops)
        self.wait()
        return self.program.logits

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def groups(self, layer: int) -> list[Group]:
        experts, found = self._layers[layer], []
        for first in range(0, experts.num_experts, self._group):
            count = min(self._group, experts.num_experts - first)
            data = [torch.from_numpy(p.blob[first : first + count].reshape(-1).copy()) for p in experts.parts]
            found.append(Group(first, count, [d.to(self._device) for d in data], overwrites=first == 0))
        return found

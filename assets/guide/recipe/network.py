"""The guide's network for training: DeepSeek-V3 (MLA attention, sigmoid-routed experts) in plain PyTorch.

Parameter names follow the Hugging Face checkpoint; only the routed experts are stacked, [E, out, in], for speed.
Shapes: B rows, T tokens, H hidden, N heads, E experts, K chosen, R latent rank.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of the network, named as in `config.json`."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    moe_intermediate_size: int = 128
    num_hidden_layers: int = 6
    first_k_dense_replace: int = 1
    num_attention_heads: int = 4
    n_routed_experts: int = 16
    n_shared_experts: int = 1
    num_experts_per_tok: int = 4
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.5
    q_lora_rank: int = 128
    kv_lora_rank: int = 128
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in FP32 whatever the activations are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, 1e-6)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A projection without bias, as everywhere in this architecture."""
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on interleaved pairs (x0, x1), (x2, x3), ..., DeepSeek's layout; cos and sin are [T, pairs]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


class Attention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2 paper, section 2.1), keys and values expanded from the latent."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        heads, head_dim = shape.num_attention_heads, shape.qk_nope_head_dim + shape.qk_rope_head_dim
        self.q_a_proj = linear(shape.hidden_size, shape.q_lora_rank)
        self.q_a_layernorm = RMSNorm(shape.q_lora_rank)
        self.q_b_proj = linear(shape.q_lora_rank, heads * head_dim)
        self.kv_a_proj_with_mqa = linear(shape.hidden_size, shape.kv_lora_rank + shape.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(shape.kv_lora_rank)
        self.kv_b_proj = linear(shape.kv_lora_rank, heads * (shape.qk_nope_head_dim + shape.v_head_dim))
        self.o_proj = linear(heads * shape.v_head_dim, shape.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        query = self._queries(x, cos, sin)  # [B, N, T, nope + rope]
        latent, shared_key = self._latent(x, cos, sin)  # [B, T, R], [B, T, rope]
        if cache is not None:
            latent, shared_key = extend(cache, latent, shared_key)
        key, value = self._expand(latent, shared_key)
        mixed = F.scaled_dot_product_attention(
            query.to(value.dtype), key, value, is_causal=query.shape[2] > 1, scale=query.shape[-1] ** -0.5
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (self.shape.num_attention_heads, -1))
        plain, rope = heads.transpose(1, 2).split((self.shape.qk_nope_head_dim, self.shape.qk_rope_head_dim), -1)
        return torch.cat((plain, rotate(rope, cos, sin)), -1)

    def _latent(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        latent, rope = self.kv_a_proj_with_mqa(x).split((self.shape.kv_lora_rank, self.shape.qk_rope_head_dim), -1)
        return self.kv_a_layernorm(latent), rotate(rope, cos, sin)

    def _expand(self, latent: Tensor, shared_key: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.kv_b_proj(latent).unflatten(-1, (self.shape.num_attention_heads, -1)).transpose(1, 2)
        plain, value = heads.split((self.shape.qk_nope_head_dim, self.shape.v_head_dim), -1)
        rope = shared_key[:, None].expand(-1, plain.shape[1], -1, -1).to(plain.dtype)
        return torch.cat((plain, rope), -1), value


def extend(cache: dict[str, Tensor], latent: Tensor, shared_key: Tensor) -> tuple[Tensor, Tensor]:
    """Append to one layer's cache and return the whole; a prompt goes in at once, then one token at a time."""
    if cache:
        latent, shared_key = torch.cat((cache["latent"], latent), 1), torch.cat((cache["key"], shared_key), 1)
    cache["latent"], cache["key"] = latent, shared_key
    return latent, shared_key


class FeedForward(nn.Module):
    """SwiGLU: the dense layer's MLP, and the shared expert."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores, group-limited top-k, a correction bias for selection only (DeepSeek-V3 paper, section 2.1.2)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.n_routed_experts, shape.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [T, H] to chosen experts [T, K] and their weights [T, K], in FP32."""
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.float() @ self.weight.t())
        chosen = self._choose(scores.detach())
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.shape.routed_scaling_factor

    def _choose(self, scores: Tensor) -> Tensor:
        biased = (scores + self.e_score_correction_bias).view(len(scores), self.shape.n_group, -1)
        group_scores = biased.topk(2, -1).values.sum(-1)
        kept = torch.zeros_like(group_scores, dtype=torch.bool)
        kept.scatter_(1, group_scores.topk(self.shape.topk_group, -1).indices, True)
        biased = biased.masked_fill(~kept[:, :, None], float("-inf")).flatten(1)
        return biased.topk(self.shape.num_experts_per_tok, -1, sorted=False).indices


class Mixture(nn.Module):
    """Routed experts beside one shared expert. `load` counts the tokens each expert got since it was last zeroed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        experts, hidden, inner = shape.n_routed_experts, shape.hidden_size, shape.moe_intermediate_size
        self.gate = Router(shape)
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, inner))
        self.shared_experts = FeedForward(hidden, inner * shape.n_shared_experts)
        self.register_buffer("load", torch.zeros(experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        chosen, weights = self.gate(tokens)
        return (self._routed(tokens, chosen, weights) + self.shared_experts(tokens)).view_as(x)

    def _routed(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        order = chosen.flatten().argsort()  # all (token, expert) pairs, sorted by expert
        counts = chosen.flatten().bincount(minlength=len(self.load))
        self.load += counts
        rows = tokens.index_select(0, order // chosen.shape[1]).split(counts.tolist())
        parts = [expert(r, w1, w2) for r, w1, w2 in zip(rows, self.gate_up.unbind(), self.down.unbind(), strict=True)]
        weighted = torch.cat(parts) * weights.flatten().index_select(0, order)[:, None]
        return weighted.index_select(0, order.argsort()).view(*chosen.shape, -1).sum(1)


def expert(rows: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One routed expert on the tokens that chose it; `gate_up` stacks both projections."""
    gate, up = F.linear(rows, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


class Block(nn.Module):
    """Attention, then a dense feed-forward (the first layers) or a mixture of experts."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        dense = index < shape.first_k_dense_replace
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(shape.hidden_size), RMSNorm(shape.hidden_size)
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape.hidden_size, shape.intermediate_size) if dense else Mixture(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Guide(nn.Module):
    """The whole network: token ids [B, T] to hidden states [B, T, H]; `lm_head` makes logits of those."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.embed_tokens = nn.Embedding(self.shape.vocab_size, self.shape.hidden_size)
        self.layers = nn.ModuleList(Block(self.shape, i) for i in range(self.shape.num_hidden_layers))
        self.norm = RMSNorm(self.shape.hidden_size)
        self.lm_head = linear(self.shape.hidden_size, self.shape.vocab_size)
        cos, sin = rope_table(self.shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self)

    def forward(self, ids: Tensor, caches: list[dict[str, Tensor]] | None = None, start: int = 0) -> Tensor:
        cos, sin = (table[start : start + ids.shape[1]] for table in (self.cos, self.sin))
        x = self.embed_tokens(ids)
        for index, block in enumerate(self.layers):
            x = block(x, cos, sin, caches[index] if caches is not None else None)
        return self.norm(x)

    def mixtures(self) -> list[Mixture]:
        """The layers' mixtures, first to last."""
        return [block.mlp for block in self.layers if isinstance(block.mlp, Mixture)]


def rope_table(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position and pair, [max positions, rope dim / 2]."""
    pairs = torch.arange(0, shape.qk_rope_head_dim, 2).float() / shape.qk_rope_head_dim
    angles = torch.arange(shape.max_position_embeddings).float()[:, None] * shape.rope_theta**-pairs
    return angles.cos(), angles.sin()


def initialise(model: Guide) -> None:
    """Scaled normal weights; projections that write to the residual stream start smaller, by 1 / sqrt(2 layers)."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=_start_deviation(name, parameter, model.shape.num_hidden_layers))


def _start_deviation(name: str, parameter: Tensor, num_layers: int) -> float:
    if "embed_tokens" in name:
        return 0.5
    if name.endswith("gate.weight") or "lm_head" in name:
        return 0.02
    writes_residual = "o_proj" in name or "down" in name
    return 0.7 * parameter.shape[-1] ** -0.5 * ((2 * num_layers) ** -0.5 if writes_residual else 1.0)

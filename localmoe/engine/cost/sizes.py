"""What a model weighs, and the FLOPs of its attention: all from its config."""

from dataclasses import dataclass
from functools import lru_cache

from localmoe.model.config import BLOCK, ModelConfig

BF16_BYTES = 2
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices that are used together: how many weights, and their bytes with scales."""

    count: int
    num_bytes: int

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.count + other.count, self.num_bytes + other.num_bytes)

    def times(self, count: int) -> "Weights":
        """`count` of them."""
        return Weights(self.count * count, self.num_bytes * count)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The parts of a model, each of one layer where layers have it. Norms, 0.002 % of V3, are left out."""

    expert: Weights
    shared: Weights  # all shared experts
    router: Weights
    dense: Weights  # the feed-forward part of a layer without experts
    projections: Weights  # attention without kv_b
    kv_b: Weights
    head: Weights
    embedding: Weights  # also counted as the head where the two are tied


@lru_cache(maxsize=64)
def sizes_of(config: ModelConfig) -> Sizes:
    """Every part of `config`."""
    c = config
    latent_q = c.q_lora_rank or 0
    queries = [(latent_q, c.hidden), (c.q_dim, latent_q)] if latent_q else [(c.q_dim, c.hidden)]
    projections = [*queries, (c.latent_width, c.hidden), (c.hidden, c.num_heads * c.v_dim)]
    vocabulary = Weights(c.vocab * c.hidden, c.vocab * c.hidden * BF16_BYTES)
    gate = c.num_experts * c.hidden
    bias_bytes = c.num_experts * FLOAT_BYTES if c.has_router_bias else 0
    return Sizes(
        expert=_ffn(c, c.moe_inter),
        shared=_ffn(c, c.num_shared_experts * c.moe_inter),
        router=Weights(gate, gate * BF16_BYTES + bias_bytes),
        dense=_ffn(c, c.dense_inter),
        projections=_matrices(c, *projections),
        kv_b=_matrices(c, (c.kv_b_dim, c.kv_lora_rank)),
        head=vocabulary,
        embedding=vocabulary,
    )


def routed_bytes(config: ModelConfig) -> int:
    """All routed experts."""
    return config.num_moe_layers * config.num_experts * sizes_of(config).expert.num_bytes


def common_bytes(config: ModelConfig, *, embedding: bool = True) -> int:
    """Everything but the routed experts; `embedding`: with the table that turns token ids into rows."""
    s, c = sizes_of(config), config
    layers = (s.projections + s.kv_b).num_bytes * c.num_layers
    layers += s.dense.num_bytes * c.num_dense_layers + (s.shared + s.router).num_bytes * c.num_moe_layers
    return layers + s.head.num_bytes + (s.embedding.num_bytes if embedding and not c.tie_embeddings else 0)


def cache_token_bytes(config: ModelConfig, element_bytes: int) -> int:
    """The latent cache of one token, all layers."""
    return config.num_layers * config.latent_width * element_bytes


def activation_bytes(config: ModelConfig) -> int:
    """What a layer with experts reads and writes of one token's activations, FP32: norms, sums, heads, expert rows."""
    c = config
    hidden = 14 * c.hidden  # two norms, two sums, what matrices read and write
    heads = 3 * c.q_dim + 2 * (c.q_lora_rank or 0) + 4 * c.latent_width + 2 * c.num_heads * c.v_dim
    shared = 6 * c.num_shared_experts * c.moe_inter  # gate, up and their product, each written and read
    routed = c.top_k * (4 * c.hidden + 6 * c.moe_inter)
    return FLOAT_BYTES * (hidden + heads + shared + routed)


def prompt_attention_flops(config: ModelConfig, num_tokens: int, chunk: int) -> float:
    """One layer's scores and sums of a prompt, causal; each chunk expands the keys and values of all before it."""
    c = config
    keys_read = num_tokens * (num_tokens + 1) // 2
    expanded = sum(min(start + chunk, num_tokens) for start in range(0, num_tokens, chunk))
    scores = 2.0 * c.num_heads * (c.nope_dim + c.rope_dim + c.v_dim) * keys_read
    return scores + 2.0 * expanded * sizes_of(c).kv_b.count


def token_attention_flops(config: ModelConfig, context: int, lanes: int = 1) -> float:
    """One layer's scores and sums of one token over `context` latents, kv_b absorbed (DeepSeek-V2 paper, 2.1).

    Kernels that score `lanes` heads at a time score idle ones too.
    """
    scored = -(-config.num_heads // lanes) * lanes * (config.kv_lora_rank + config.rope_dim)
    return 2.0 * (scored + config.num_heads * config.kv_lora_rank) * context


def _ffn(config: ModelConfig, inter: int) -> Weights:
    up, down = (inter, config.hidden), (config.hidden, inter)
    return _matrices(config, up, up, down)


def _matrices(config: ModelConfig, *shapes: tuple[int, int]) -> Weights:
    count = sum(rows * cols for rows, cols in shapes)
    if config.weight_format == "bf16":
        return Weights(count, count * BF16_BYTES)
    blocks = sum(-(-rows // BLOCK) * -(-cols // BLOCK) for rows, cols in shapes)
    return Weights(count, count + blocks * FLOAT_BYTES)

"""Memory of a GPU's programs before they are recorded: what kernels/gpu asks for, by what lives at the same time.

Of each op that may be the widest, what it reads and writes and what is kept meanwhile, as GpuOps records them. Where
weights are FP8, activations are counted with their codes, though some chips need none. A test holds it to the
programs' own count.
"""

import math
from bisect import bisect_right
from functools import lru_cache

from localmoe.engine.cost.sizes import BF16_BYTES, FLOAT_BYTES
from localmoe.model.config import BLOCK, ModelConfig

MOST_ABSORBED, MOST_QUERIES, EXPANDED_BYTES = 32, 64, 256 << 20  # kernels/gpu/attention.py
NUM_SMS, TILE_HEADS = 192, 32  # more than known chips have, and heads of a tile: a block for each SM
PROGRAM_BYTES = 32 << 20  # of one: split sums of products, page tables, the last rows' logits
RUN_WORDS = 3  # of a token: position, row of the cache, selected
WORD_BYTES = 4


def scratch_bytes(config: ModelConfig, num_tokens: int, num_gpus: int, cache_tokens: int) -> int:
    """Of a prompt of up to `num_tokens` that `num_gpus` read together, on each; the latent cache has `cache_tokens`."""
    if num_gpus == 1:
        return _program(config, num_tokens, cache_tokens, _whole(config)) + num_tokens * _choices(config)
    own = 2 * -(-num_tokens // (2 * num_gpus))  # prefill/cluster.py: most_own_tokens
    return own_bytes(config, own, cache_tokens) + mixtures_bytes(config, num_tokens)


def own_bytes(config: ModelConfig, num_tokens: int, cache_tokens: int) -> int:
    """Of up to `num_tokens` where routed experts are computed elsewhere."""
    return _program(config, num_tokens, cache_tokens, _own(config))


def mixtures_bytes(config: ModelConfig, num_tokens: int) -> int:
    """Of the routed experts of up to `num_tokens`, whose rows are given: any of them may all choose the same."""
    each = max(_router(config), _experts(config)) + _choices(config)
    return num_tokens * (each + RUN_WORDS * WORD_BYTES) + PROGRAM_BYTES


def most_tokens(config: ModelConfig, nbytes: float, num_gpus: int, cache_tokens: int, wanted: int) -> int:
    """Of a prompt, up to `wanted`, whose scratch fits into `nbytes`."""
    tokens = range(1, wanted + 1)
    return bisect_right(tokens, nbytes, key=lambda n: scratch_bytes(config, n, num_gpus, cache_tokens))


def _program(config: ModelConfig, num_tokens: int, cache_tokens: int, each: int) -> int:
    """`each`: the most that lives of a token outside of attention itself, whose scratch is not by tokens of the run."""
    c = config
    attention = FLOAT_BYTES * c.hidden + BF16_BYTES * (c.q_dim + c.num_heads * c.v_dim)
    arena = max(num_tokens * each, num_tokens * attention + _room(c, num_tokens, cache_tokens))
    angles = FLOAT_BYTES * (c.rope_dim // 2 + c.rope_dim)
    return arena + num_tokens * (BF16_BYTES * c.hidden + RUN_WORDS * WORD_BYTES + angles) + PROGRAM_BYTES


def _room(config: ModelConfig, num_tokens: int, cache_tokens: int) -> int:
    """Of one layer's attention: absorbed queries and what their splits leave; one step of heads' keys and values."""
    c, heads = config, config.num_heads
    queries = min(num_tokens, MOST_QUERIES)
    splits = queries + NUM_SMS // -(-heads // TILE_HEADS)
    split = FLOAT_BYTES * splits * (c.kv_lora_rank + 1)
    absorbed = heads * (BF16_BYTES * queries * (c.latent_width + c.kv_lora_rank) + split)
    if num_tokens <= MOST_ABSORBED:
        return absorbed
    head_rows = c.nope_dim + c.v_dim
    step = 1 if c.weight_format == "bf16" else BLOCK // math.gcd(BLOCK, head_rows)
    head = BF16_BYTES * cache_tokens * head_rows
    together = min(max(EXPANDED_BYTES // max(head, 1) // step, 1) * step, heads)
    return absorbed + BF16_BYTES * cache_tokens * c.latent_width + together * head


@lru_cache(maxsize=64)
def _whole(config: ModelConfig) -> int:
    kept = FLOAT_BYTES * config.hidden  # the residual stream
    mixed = kept + FLOAT_BYTES * config.hidden  # and the routed experts' sum
    shared = _ffn(config, config.num_shared_experts * config.moe_inter)
    routed = max(kept + _router(config), kept + _experts(config), mixed + shared) if config.num_moe_layers else 0
    return max(routed, _dense(config), _projections(config))


@lru_cache(maxsize=64)
def _own(config: ModelConfig) -> int:
    row = BF16_BYTES * config.hidden
    offered = 2 * row + row  # the residual stream, and the routed experts' input
    shared = offered + _ffn(config, config.num_shared_experts * config.moe_inter)
    exchanged = offered + row + 2 * FLOAT_BYTES * config.hidden  # shared experts' sum; the routed ones', and a part
    return max(shared if config.num_shared_experts else 0, exchanged, _dense(config), _projections(config))


def _dense(config: ModelConfig) -> int:
    return FLOAT_BYTES * config.hidden + _ffn(config, config.dense_inter) if config.num_dense_layers else 0


def _ffn(config: ModelConfig, inter: int) -> int:
    """Input, gate and up; or gate and output."""
    first = BF16_BYTES * (config.hidden + 2 * inter) + _codes(config, config.hidden)
    return max(first, BF16_BYTES * (inter + config.hidden) + _codes(config, inter))


def _projections(config: ModelConfig) -> int:
    """Queries with latent queries, before that these twice, or latents; then outputs, and those that are selected."""
    c = config
    values = c.num_heads * c.v_dim
    latent = c.q_lora_rank or 0
    hidden = BF16_BYTES * c.hidden + _codes(c, c.hidden)
    made = BF16_BYTES * c.q_dim + max(BF16_BYTES * latent + _codes(c, latent), BF16_BYTES * c.latent_width)
    queries = hidden + max(made, 2 * BF16_BYTES * latent)
    outputs = BF16_BYTES * (values + c.hidden) + _codes(c, values)
    selected = BF16_BYTES * values + max(FLOAT_BYTES * c.hidden, BF16_BYTES * values)
    return FLOAT_BYTES * c.hidden + max(queries, outputs, selected)


def _router(config: ModelConfig) -> int:
    return BF16_BYTES * config.hidden + FLOAT_BYTES * (config.num_experts + config.top_k)


def _experts(config: ModelConfig) -> int:
    """Input, weights and sum; of each choice what is between gate, up and down, and what comes of it."""
    c = config
    chosen = BF16_BYTES * (c.moe_inter + c.hidden) + _codes(c, c.moe_inter)
    sums = FLOAT_BYTES * (c.hidden + c.top_k)
    return BF16_BYTES * c.hidden + _codes(c, c.hidden) + sums + c.top_k * chosen


def _choices(config: ModelConfig) -> int:
    """Which experts were chosen in every layer, and one layer's order of them, both ways."""
    return WORD_BYTES * config.top_k * (config.num_moe_layers + 2)


def _codes(config: ModelConfig, width: int) -> int:
    """FP8, and a scale for each block."""
    return 0 if config.weight_format == "bf16" else width + FLOAT_BYTES * -(-width // BLOCK)

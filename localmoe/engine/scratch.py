"""Memory of a step program before it is recorded: activations and scratch, from above."""

from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig

FLOAT_BYTES = 4
STRIP = 16  # tokens that the GEMM takes side by side: each expert's last strip may be nearly empty
HEAD_BLOCK, ATTENTION_STATES = 32, 64  # heads that read the cache together; pieces of it with sums of their own
ABSORBED_ROWS, GEMV_TOKENS = 128, 8  # most tokens of the absorbed form; most that never take the other
SPAN, QUERY_ROWS = 512, 48  # positions expanded at a time; queries that read them together
WORKER_FLOATS = 1 << 17  # panels and tiles of one worker, beside what grows with the model
PADDING = 1.15  # rows are padded to whole cache lines
ROUNDING_BYTES = 3 * (2 << 20)  # three areas, each in whole huge pages


def scratch_bytes(config: ModelConfig, num_tokens: int, num_workers: int, isa: str = "") -> int:
    """Bytes of a program for up to `num_tokens` on `num_workers`; a test holds it to the programs' own count."""
    shared = max(_attention(config, num_tokens), _experts(config, num_tokens))
    floats = _activations(config, num_tokens) + shared + num_workers * _worker(config) + num_tokens * config.vocab
    return int(PADDING * FLOAT_BYTES * floats) + ROUNDING_BYTES


def _activations(config: ModelConfig, num_tokens: int) -> int:
    """What lives at the same time in one layer; the next layer takes its place."""
    attention = 2 * config.q_dim + config.num_heads * config.v_dim + 2 * config.latent_width + (config.q_lora_rank or 0)
    inter = max(config.dense_inter, max(1, config.num_shared_experts) * config.moe_inter)
    return num_tokens * (4 * config.hidden + attention + 3 * inter + 2 * config.num_experts)


def _attention(config: ModelConfig, num_tokens: int) -> int:
    """Queries and sums of the absorbed form, or one span's keys and values of the expanded one."""
    heads, rows = config.num_heads, min(num_tokens, ABSORBED_ROWS)
    blocks = -(-heads // HEAD_BLOCK)
    states = max(ATTENTION_STATES, rows * blocks) * min(heads, HEAD_BLOCK) * (config.kv_lora_rank + 2)
    absorbed = rows * (2 * heads + STRIP) * config.latent_width + states + ATTENTION_STATES * 2 * HEAD_BLOCK
    if num_tokens <= GEMV_TOKENS:
        return absorbed
    head = config.nope_dim + config.rope_dim + config.v_dim + STRIP
    return max(absorbed, SPAN * (config.latent_width + 2 * STRIP) + heads * (SPAN * head + 2 * num_tokens))


def _experts(config: ModelConfig, num_tokens: int) -> int:
    """Tokens sorted by expert, in strips, and what their experts make of them."""
    slots = num_tokens * config.top_k
    strips = min(slots // 8, slots // STRIP + config.num_experts)
    row = config.hidden + config.moe_inter
    return num_tokens * config.hidden + slots * row + strips * STRIP * row


def _worker(config: ModelConfig) -> int:
    """A page of the cache, or a block of queries with its sums and scores."""
    block = QUERY_ROWS * (config.nope_dim + config.rope_dim + config.v_dim + 11 * STRIP)
    return max(PAGE_TOKENS * config.latent_width, block) + WORKER_FLOATS

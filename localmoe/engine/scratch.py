"""Memory of a step program before it is recorded: activations and scratch, from above."""

from localmoe.model.config import ModelConfig

FLOAT_BYTES = 4
STRIP = 16  # tokens that the GEMM takes side by side: each expert's last strip may be nearly empty
WORKER_FLOATS = 1 << 17  # panels and tiles of one worker, beside what grows with the model
PADDING = 1.15  # rows are padded to whole cache lines
ROUNDING_BYTES = 3 * (2 << 20)  # three areas, each in whole huge pages


def scratch_bytes(config: ModelConfig, num_tokens: int, num_workers: int) -> int:
    """Bytes of a program for up to `num_tokens` on `num_workers`; a test holds it to the programs' own count."""
    shared = _activations(config, num_tokens) + _experts(config, num_tokens)
    floats = shared + num_workers * _worker(config, num_tokens) + num_tokens * config.vocab
    return int(PADDING * FLOAT_BYTES * floats) + ROUNDING_BYTES


def _activations(config: ModelConfig, num_tokens: int) -> int:
    """What lives at the same time in one layer; the next layer takes its place."""
    attention = 2 * config.q_dim + config.num_heads * config.v_dim + 2 * config.latent_width + (config.q_lora_rank or 0)
    inter = max(config.dense_inter, max(1, config.num_shared_experts) * config.moe_inter)
    absorbed = min(num_tokens, 32) * config.num_heads * 2 * config.latent_width
    return num_tokens * (4 * config.hidden + attention + 3 * inter + 2 * config.num_experts) + absorbed


def _experts(config: ModelConfig, num_tokens: int) -> int:
    """Tokens sorted by expert, in strips, and what their experts make of them."""
    slots = num_tokens * config.top_k
    strips = min(slots // 8, slots // STRIP + config.num_experts)
    row = config.hidden + config.moe_inter
    return num_tokens * config.hidden + slots * row + strips * STRIP * row


def _worker(config: ModelConfig, num_tokens: int) -> int:
    """One head of prefill attention: its queries, its sums and its slices of kv_b."""
    head = config.nope_dim + config.rope_dim + config.v_dim
    fixed = (head + 8 * STRIP) * (config.kv_lora_rank + STRIP) + 64 * head
    return num_tokens * (head + STRIP) + fixed + WORKER_FLOATS

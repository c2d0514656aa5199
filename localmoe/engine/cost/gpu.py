"""Time on one GPU, and the memory that its ring of experts gets."""

from localmoe.engine.cost.placement import Runs
from localmoe.engine.cost.rates import Gpu
from localmoe.engine.cost.sizes import (
    BF16_BYTES,
    Weights,
    cache_token_bytes,
    common_bytes,
    prompt_attention_flops,
    sizes_of,
    token_attention_flops,
)
from localmoe.engine.cost.term import Term, computed, longest, moved
from localmoe.errors import OutOfMemoryError
from localmoe.model.config import ModelConfig

TILE = 128  # tokens of one expert that a thread block takes
LEAST_RING = 2  # experts: one is computed while the other comes
WORKSPACE_BYTES = 1 << 30  # CUDA's context, libraries, graphs
ROWS = 3  # of a token's hidden state that live at the same time


def linear(gpu: Gpu, name: str, weights: Weights, runs: Runs) -> Term:
    """`weights` times the tokens of each run."""
    return longest(
        name,
        moved("read", sum(float(times) * weights.num_bytes for _, times in runs), gpu.memory),
        computed("arithmetic", sum(2.0 * times * tokens * weights.count for tokens, times in runs), gpu.gemm),
    )


def prompt_attention(gpu: Gpu, config: ModelConfig, num_tokens: int, chunk: int, num_gpus: int = 1) -> Term:
    """All layers' scores and sums of a prompt, divided between GPUs."""
    return computed(
        "attention", config.num_layers * prompt_attention_flops(config, num_tokens, chunk) / num_gpus, gpu.attention
    )


def token_attention(gpu: Gpu, config: ModelConfig, context: int, num_streams: int) -> Term:
    """All layers' attention of one token of each stream over its latents."""
    flops = num_streams * config.num_layers * token_attention_flops(config, context)
    return longest(
        "attention",
        moved("read", float(num_streams) * context * cache_token_bytes(config, BF16_BYTES), gpu.memory),
        computed("arithmetic", flops, gpu.attention),
    )


def num_passes(gpu: Gpu, config: ModelConfig, num_tokens: int, num_gpus: int) -> int:
    """Passes over the experts in which a prompt is streamed: as few as leave room for a ring.

    Raises OutOfMemoryError where even one token leaves none.
    """
    least = LEAST_RING * sizes_of(config).expert.num_bytes
    fixed = gpu.vram_bytes - _resident_bytes(config, num_tokens) - least
    most_tokens = int(fixed // scratch_token_bytes(config, num_gpus))
    if most_tokens < 1:
        raise OutOfMemoryError(
            f"Weights, latent cache and scratch for {num_tokens:,} tokens leave no room for experts in"
            f" {gpu.vram_bytes / 1e9:,.1f} GB of GPU memory.",
            "shorten the prompt, choose a smaller model, or run on the CPU",
        )
    return -(-num_tokens // most_tokens)


def ring_bytes(gpu: Gpu, config: ModelConfig, num_tokens: int, num_gpus: int, passes: int) -> float:
    """What is left for experts on their way: not more than the GPU's part of a layer."""
    scratch = -(-num_tokens // passes) * scratch_token_bytes(config, num_gpus)
    left = gpu.vram_bytes - _resident_bytes(config, num_tokens) - scratch
    return min(left, config.num_experts * sizes_of(config).expert.num_bytes / num_gpus)


def _resident_bytes(config: ModelConfig, num_tokens: int) -> float:
    cache = num_tokens * cache_token_bytes(config, BF16_BYTES)
    return common_bytes(config, embedding=False) + cache + WORKSPACE_BYTES


def own_token_bytes(config: ModelConfig) -> float:
    """Of one token where the CPU has its experts: hidden states."""
    return BF16_BYTES * ROWS * config.hidden


def scratch_token_bytes(config: ModelConfig, num_gpus: int) -> float:
    """Of one token of a prompt: its row for each chosen expert, that expert's gate and up, and hidden states."""
    chosen = config.top_k * (config.hidden + 2 * config.moe_inter) / num_gpus
    return BF16_BYTES * (chosen + ROWS * config.hidden)

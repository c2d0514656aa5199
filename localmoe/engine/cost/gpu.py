"""Time on one GPU, and the memory that its ring of experts gets."""

from localmoe.engine.cost.gpu_scratch import most_tokens, scratch_bytes
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
    left = gpu.vram_bytes - _resident_bytes(config, num_tokens) - least
    most = most_tokens(config, left, num_gpus, num_tokens, num_tokens)
    if most < 1:
        raise OutOfMemoryError(
            f"Weights, latent cache and scratch for {num_tokens:,} tokens leave no room for experts in"
            f" {gpu.vram_bytes / 1e9:,.1f} GB of GPU memory.",
            "shorten the prompt, choose a smaller model, or run on the CPU",
        )
    return -(-num_tokens // most)


def ring_bytes(gpu: Gpu, config: ModelConfig, num_tokens: int, num_gpus: int, passes: int) -> float:
    """What is left for experts on their way: not more than the GPU's part of a layer."""
    scratch = scratch_bytes(config, -(-num_tokens // passes), num_gpus, num_tokens)
    left = gpu.vram_bytes - _resident_bytes(config, num_tokens) - scratch
    return min(left, config.num_experts * sizes_of(config).expert.num_bytes / num_gpus)


def _resident_bytes(config: ModelConfig, num_tokens: int) -> float:
    cache = num_tokens * cache_token_bytes(config, BF16_BYTES)
    return common_bytes(config, embedding=False) + cache + WORKSPACE_BYTES

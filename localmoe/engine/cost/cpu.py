"""Time on the cores: weights come from DRAM while earlier ones are multiplied, so the longer of both counts."""

from functools import lru_cache
from itertools import pairwise

from localmoe.engine.cost.placement import Runs
from localmoe.engine.cost.rates import Cpu, Matmul, Rate
from localmoe.engine.cost.routing import distinct_experts, over_experts
from localmoe.engine.cost.sizes import (
    BF16_BYTES,
    Weights,
    activation_bytes,
    prompt_attention_flops,
    sizes_of,
    token_attention_flops,
)
from localmoe.engine.cost.term import Term, computed, counted, longest, moved, total
from localmoe.model.config import ModelConfig

GEMV_TOKENS = 8  # up to so many share one decoding of the weights
STRIP = 16  # beyond that the kernels take tokens in strips, the last one perhaps nearly empty
Points = tuple[tuple[int, float], ...]  # tokens, and seconds of one weight times them


def linear(cpu: Cpu, name: str, weights: Weights, runs: Runs) -> Term:
    """`weights` times the tokens of each run."""
    num_bytes = sum(times * weights.num_bytes for _, times in runs)
    flops = sum(2.0 * times * tokens * weights.count for tokens, times in runs)
    matmul = matmul_of(cpu, weights)
    seconds = sum(times * weights.count * weight_seconds(cpu, tokens, matmul) for tokens, times in runs)
    return _slower(cpu, name, num_bytes, flops, seconds)


def experts(cpu: Cpu, config: ModelConfig, runs: Runs) -> Term:
    """The routed experts of a layer for each run: those that any token chose, each for its own number of tokens."""
    expert = sizes_of(config).expert
    num_bytes = sum(times * distinct_experts(config, tokens) * expert.num_bytes for tokens, times in runs)
    flops = sum(2.0 * times * tokens * config.top_k * expert.count for tokens, times in runs)
    points = _points(cpu, matmul_of(cpu, expert))
    seconds = expert.count * sum(times * _mixture_seconds(points, config, tokens) for tokens, times in runs)
    return _slower(cpu, "experts", num_bytes, flops, seconds)


def prompt_attention(cpu: Cpu, config: ModelConfig, num_tokens: int, chunk: int) -> Term:
    """All layers' scores and sums of a prompt, chunk by chunk."""
    flops = config.num_layers * prompt_attention_flops(config, num_tokens, chunk)
    return computed("attention", flops, cpu.fma.times(cpu.kernels.prompt_attention))


def token_attention(cpu: Cpu, config: ModelConfig, context: int, num_streams: int, cache_bytes: int) -> Term:
    """All layers' attention of one token of each stream; `cache_bytes` of one token's latents."""
    flops = num_streams * config.num_layers * token_attention_flops(config, context, cpu.kernels.lanes)
    num_bytes, arithmetic = float(num_streams) * context * cache_bytes, cpu.fma.times(cpu.kernels.token_attention)
    if cpu.kernels.latents is None:
        return longest("attention", moved("read", num_bytes, cpu.read), computed("arithmetic", flops, arithmetic))
    latents = cpu.stream.times(cpu.kernels.latents)
    return total("attention", moved("read", num_bytes, latents), computed("arithmetic", flops, arithmetic))


def activations(cpu: Cpu, config: ModelConfig, num_tokens: int) -> Term:
    """What all layers of a prompt pass on from op to op; nothing where its rate is not known."""
    if cpu.activations is None:
        return total("activations")
    return moved("activations", float(config.num_layers) * num_tokens * activation_bytes(config), cpu.activations)


def around(cpu: Cpu, config: ModelConfig, num_streams: int) -> Term:
    """A step of decode beside the network: the program around it, and the choice of each stream's token."""
    step = (counted("program", 1, cpu.step),) if cpu.step else ()
    choice = (counted("choice", num_streams * config.vocab, cpu.logit),) if cpu.logit else ()
    return total("beside the network", *step, *choice)


def matmul_of(cpu: Cpu, weights: Weights) -> Matmul:
    """The kernels for weights of this format."""
    is_bf16 = weights.num_bytes >= BF16_BYTES * weights.count
    return cpu.kernels.bf16_matmul if is_bf16 and cpu.kernels.bf16_matmul else cpu.kernels.matmul


def weight_seconds(cpu: Cpu, num_tokens: int, matmul: Matmul | None = None) -> float:
    """One weight times `num_tokens`: straight lines between the measured points, from the tokens that kernels see."""
    return _seconds_between(_points(cpu, matmul or cpu.kernels.matmul), num_tokens)


def _points(cpu: Cpu, matmul: Matmul) -> Points:
    return tuple((tokens, 2 * tokens / (fraction.value * cpu.fma.value)) for tokens, fraction in matmul)


@lru_cache(maxsize=4096)  # plans of one machine ask for the same prompts again and again
def _mixture_seconds(points: Points, config: ModelConfig, num_tokens: int) -> float:
    """One weight of each expert of a layer times the tokens that chose it."""
    return over_experts(config, num_tokens, lambda n: _seconds_between(points, n))


def _seconds_between(points: Points, num_tokens: int) -> float:
    if num_tokens <= 0:
        return 0.0
    seen = num_tokens if num_tokens <= GEMV_TOKENS else -(-num_tokens // STRIP) * STRIP
    if seen <= points[0][0]:
        return points[0][1]
    for (left, t0), (right, t1) in pairwise(points):
        if seen <= right:
            return t0 + (t1 - t0) * (seen - left) / (right - left)
    return points[-1][1] * seen / points[-1][0]


def _slower(cpu: Cpu, name: str, num_bytes: float, flops: float, seconds: float) -> Term:
    if not seconds:
        return total(name)
    fma = cpu.fma.times(cpu.kernels.matmul[0][1])
    reached = Rate(flops / seconds, fma.origin, fma.source)
    return longest(name, moved("read", num_bytes, cpu.read), computed("arithmetic", flops, reached))

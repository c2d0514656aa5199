"""Time of one decode step: one token of each stream."""

from localmoe.engine.cost import cpu as on_cpu
from localmoe.engine.cost import gpu as on_gpu
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.prefill import from_disk
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.routing import distinct_experts
from localmoe.engine.cost.sizes import cache_token_bytes, sizes_of
from localmoe.engine.cost.term import Term, counted, longest, total
from localmoe.model.config import ModelConfig


def step(rates: Rates, config: ModelConfig, placement: Placement, context: int, num_streams: int = 1) -> Term:
    """One step, each stream with `context` tokens in its cache."""
    if placement.num_gpus:
        return _with_attention_on_gpu(rates, config, placement, context, num_streams)
    return _on_the_cpu(rates, config, placement, context, num_streams)


def _on_the_cpu(rates: Rates, config: ModelConfig, placement: Placement, context: int, num_streams: int) -> Term:
    cpu, s, c = rates.cpu, sizes_of(config), config
    once, mixtures = ((num_streams, c.num_layers),), ((num_streams, c.num_moe_layers),)
    cache_bytes = cache_token_bytes(c, placement.cache_element_bytes)
    return total(
        "step",
        on_cpu.linear(cpu, "projections", s.projections + s.kv_b, once),
        on_cpu.token_attention(cpu, c, context, num_streams, cache_bytes),
        on_cpu.linear(cpu, "dense layers", s.dense, ((num_streams, c.num_dense_layers),)),
        on_cpu.linear(cpu, "router", s.router, mixtures),
        on_cpu.linear(cpu, "shared experts", s.shared, mixtures),
        longest("mixture", *_from_disk(rates, c, placement, num_streams), on_cpu.experts(cpu, c, mixtures)),
        on_cpu.linear(cpu, "head", s.head, ((num_streams, 1),)),
        counted("layers", c.num_layers, cpu.layer),
        on_cpu.around(cpu, c, num_streams),
    )


def _with_attention_on_gpu(
    rates: Rates, config: ModelConfig, placement: Placement, context: int, num_streams: int
) -> Term:
    """The first GPU attends, then the CPU computes the routed experts while the GPU computes the shared ones."""
    gpu, s, c = rates.gpus[0], sizes_of(config), config
    once, mixtures = ((num_streams, c.num_layers),), ((num_streams, c.num_moe_layers),)
    return total(
        "step",
        on_gpu.linear(gpu, "projections", s.projections + s.kv_b, once),
        on_gpu.token_attention(gpu, c, context, num_streams),
        on_gpu.linear(gpu, "dense layers", s.dense, ((num_streams, c.num_dense_layers),)),
        on_gpu.linear(gpu, "router", s.router, mixtures),
        longest(
            "mixture",
            *_from_disk(rates, c, placement, num_streams),
            on_cpu.experts(rates.cpu, c, mixtures),
            on_gpu.linear(gpu, "shared experts", s.shared, mixtures),
        ),
        on_gpu.linear(gpu, "head", s.head, ((num_streams, 1),)),
        counted("layers", c.num_layers, gpu.layer),
        on_cpu.around(rates.cpu, c, num_streams),
    )


def _from_disk(rates: Rates, config: ModelConfig, placement: Placement, num_streams: int) -> tuple[Term, ...]:
    """The chosen experts that DRAM does not happen to hold."""
    chosen = config.num_moe_layers * distinct_experts(config, num_streams) * sizes_of(config).expert.num_bytes
    return from_disk(rates, placement, chosen)

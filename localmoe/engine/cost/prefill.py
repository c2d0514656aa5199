"""Time to read a prompt: on the CPU, with attention on a GPU, or with the experts streamed."""

from localmoe.engine.cost import cpu as on_cpu
from localmoe.engine.cost import gpu as on_gpu
from localmoe.engine.cost.exchange import exchange, link
from localmoe.engine.cost.placement import Placement, Runs, chunks, num_runs, repeat
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.routing import tiles
from localmoe.engine.cost.sizes import BF16_BYTES, routed_bytes, sizes_of
from localmoe.engine.cost.term import Term, computed, counted, longest, moved, total
from localmoe.model.config import ModelConfig

LAYER_LAUNCHES = 20  # kernels of a layer without its routed experts
GROUP_LAUNCHES = 3  # gate and up, activation, down
GROUP_EVENTS = 2  # ready, done


def on_the_cpu(rates: Rates, config: ModelConfig, placement: Placement, num_tokens: int) -> Term:
    """Chunk by chunk. Experts that DRAM does not hold come from disk meanwhile, whole layers for each chunk."""
    cpu, s, c = rates.cpu, sizes_of(config), config
    runs = chunks(num_tokens, placement.chunk)
    mixtures = _feed_forward(runs, c.num_moe_layers)
    compute = total(
        "compute",
        on_cpu.linear(cpu, "projections", s.projections, repeat(runs, c.num_layers)),
        on_cpu.prompt_attention(cpu, c, num_tokens, placement.chunk),
        on_cpu.linear(cpu, "dense layers", s.dense, repeat(runs, c.num_dense_layers)),
        on_cpu.linear(cpu, "router", s.router, mixtures),
        on_cpu.linear(cpu, "shared experts", s.shared, mixtures),
        on_cpu.experts(cpu, c, mixtures),
        on_cpu.activations(cpu, c, num_tokens),
        on_cpu.linear(cpu, "head", s.head, ((1, 1),)),
        counted("layers", c.num_layers * num_runs(runs), cpu.layer),
    )
    stream = from_disk(rates, placement, float(num_runs(runs)) * routed_bytes(c))
    return longest("prefill", *stream, compute)


def with_attention_on_gpu(rates: Rates, config: ModelConfig, placement: Placement, num_tokens: int) -> Term:
    """The routed experts on the CPU, all else on the first GPU."""
    gpu, s, c = rates.gpus[0], sizes_of(config), config
    runs = chunks(num_tokens, placement.chunk)
    mixtures = _feed_forward(runs, c.num_moe_layers)
    rows = 2.0 * num_tokens * c.num_moe_layers * c.hidden * BF16_BYTES
    disk = from_disk(rates, placement, float(num_runs(runs)) * routed_bytes(c))
    return total(
        "prefill",
        on_gpu.linear(gpu, "projections", s.projections, repeat(runs, c.num_layers)),
        on_gpu.prompt_attention(gpu, c, num_tokens, placement.chunk),
        on_gpu.linear(gpu, "dense layers", s.dense, repeat(runs, c.num_dense_layers)),
        on_gpu.linear(gpu, "router", s.router, mixtures),
        longest(
            "mixture",
            *disk,
            on_cpu.experts(rates.cpu, c, mixtures),
            on_gpu.linear(gpu, "shared experts", s.shared, mixtures),
        ),
        moved("rows to the CPU and back", rows, gpu.h2d),
        on_gpu.linear(gpu, "head", s.head, ((1, 1),)),
        counted("layers", c.num_layers * num_runs(runs), gpu.layer),
    )


def streamed(rates: Rates, config: ModelConfig, placement: Placement, num_tokens: int) -> Term:
    """SLP: experts flow through a ring on each GPU while it computes. Raises OutOfMemoryError as `num_passes` does.

    In a layer's steady state the loader may run ahead by what the ring holds. While attention computes, no slot gets
    free, so what the ring does not hold of a layer comes while its experts are computed:
    max(transfer, attention + max(experts, transfer - ring)).
    """
    gpu, num_gpus, c = rates.gpus[0], placement.num_gpus, config
    passes = on_gpu.num_passes(gpu, c, num_tokens, num_gpus)
    chunk = -(-num_tokens // passes)
    expert = sizes_of(c).expert
    part = c.num_experts * expert.num_bytes / num_gpus  # of a layer, for one GPU
    ring = on_gpu.ring_bytes(gpu, c, num_tokens, num_gpus, passes)
    num_layers = passes * c.num_moe_layers
    rate = link(rates, num_gpus)
    rows_out, rows_in = exchange(rates, c, num_tokens, num_gpus)
    stream = total("stream", moved("weights", num_layers * part, rate), rows_in)
    late = moved("not held by the ring", num_layers * (part - ring), rate)
    return total(
        "prefill",
        moved("first group", min(placement.group_experts, c.num_experts) * expert.num_bytes, rate),
        longest(
            "layers",
            *from_disk(rates, placement, float(passes) * routed_bytes(c)),
            stream,
            total("compute", *_slp_compute(rates, c, placement, num_tokens, chunk, late), rows_out, rows_in),
        ),
        on_gpu.linear(gpu, "head", sizes_of(c).head, ((1, 1),)),
    )


def from_disk(rates: Rates, placement: Placement, num_bytes: float) -> tuple[Term, ...]:
    """What DRAM does not hold of `num_bytes` of routed experts: nothing where it holds all."""
    if placement.resident_share == 1:
        return ()
    if rates.disk is None:
        raise ValueError(f"{rates.machine}: experts are to come from disk, but the disk's rate is not given")
    return (moved("disk", num_bytes * (1 - placement.resident_share), rates.disk),)


def _slp_compute(
    rates: Rates, config: ModelConfig, placement: Placement, num_tokens: int, chunk: int, late: Term
) -> tuple[Term, ...]:
    gpu, num_gpus, s, c = rates.gpus[0], placement.num_gpus, sizes_of(config), config
    runs = chunks(num_tokens, chunk)
    own = tuple((-(-tokens // num_gpus), times) for tokens, times in runs)  # of the tokens, but of all for experts
    mixtures = _feed_forward(own, c.num_moe_layers)
    passes = num_runs(runs)
    groups = passes * c.num_moe_layers * -(-c.num_experts // (num_gpus * placement.group_experts))
    return (
        on_gpu.linear(gpu, "projections", s.projections, repeat(own, c.num_layers)),
        on_gpu.prompt_attention(gpu, c, num_tokens, chunk, num_gpus),
        on_gpu.linear(gpu, "dense layers", s.dense, repeat(own, c.num_dense_layers)),
        on_gpu.linear(gpu, "router", s.router, mixtures),
        on_gpu.linear(gpu, "shared experts", s.shared, mixtures),
        longest("experts", _gpu_experts(rates, c, runs, num_gpus), late),
        counted("launches", passes * c.num_layers * LAYER_LAUNCHES + groups * GROUP_LAUNCHES, gpu.launch),
        counted("events", groups * GROUP_EVENTS, gpu.event),
    )


def _gpu_experts(rates: Rates, config: ModelConfig, runs: Runs, num_gpus: int) -> Term:
    """Whole tiles: the last one of each expert takes as long as a full one. The last layer's one token is left out."""
    num_tiles = sum(times * tiles(config, tokens, on_gpu.TILE) for tokens, times in runs)
    flops = 2.0 * on_gpu.TILE * num_tiles * sizes_of(config).expert.count * (config.num_moe_layers - 1)
    term = computed("tiles", flops / num_gpus, rates.gpus[0].gemm)
    count = num_tiles * (config.num_moe_layers - 1) / num_gpus
    return Term(term.name, f"{count:,.0f} of {on_gpu.TILE} tokens, {term.what}", term.seconds)


def _feed_forward(runs: Runs, num_layers: int) -> Runs:
    """One run for each layer and run, except in the last layer, which computes only what the last token needs."""
    return (*repeat(runs, num_layers - 1), (1, 1)) if num_layers else ()

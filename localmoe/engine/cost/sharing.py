"""What a machine's rates say to the policies between a device and the CPU: who gets which experts, one batch or two."""

from localmoe.decode.alternation import LayerTimes, alternation_pays
from localmoe.engine.cost import cpu as on_cpu
from localmoe.engine.cost.decode import step
from localmoe.engine.cost.exchange import link
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.prefill import GROUP_EVENTS, GROUP_LAUNCHES
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.routing import typical_counts
from localmoe.engine.cost.sizes import sizes_of
from localmoe.model.config import ModelConfig
from localmoe.prefill.split import SplitRates, cpu_seconds, split

MANY_TOKENS = 256  # of an expert: the CPU kernels are at their best
HOT_LAUNCHES = 8  # of a layer with hot experts: rows, ids and weights there, what sorts them, the group, its sum


def split_rates(rates: Rates, config: ModelConfig) -> SplitRates:
    """For prompts whose experts the first GPU and the CPU share.

    The CPU's time for an expert is a straight line: for one token what reading or decoding the weights takes, for more
    what each adds to that where kernels multiply strips.
    """
    gpu, expert = rates.gpus[0], sizes_of(config).expert
    matmul = on_cpu.matmul_of(rates.cpu, expert)
    one_s = max(expert.num_bytes / rates.cpu.read.value, expert.count * on_cpu.weight_seconds(rates.cpu, 1, matmul))
    many_s = expert.count * on_cpu.weight_seconds(rates.cpu, MANY_TOKENS, matmul)
    token_s = max(0.0, many_s - one_s) / (MANY_TOKENS - 1)
    return SplitRates(
        move_s=expert.num_bytes / link(rates, 1).value,
        device_expert_s=GROUP_LAUNCHES * gpu.launch.value + GROUP_EVENTS * gpu.event.value,
        device_token_s=2.0 * expert.count / gpu.gemm.value,
        cpu_expert_s=one_s - token_s,
        cpu_token_s=token_s,
    )


def shares_from(rates: Rates, config: ModelConfig, least: int, most: int) -> int | None:
    """The shortest prompt, of `least` to `most` tokens, whose experts the first GPU and the CPU share; None: none is.

    Shared layers are issued one by one, so what sharing saves must outweigh a layer's issue. The CPU's time grows with
    the tokens and that of moving an expert does not: from some length on it pays.
    """
    known = split_rates(rates, config)

    def pays(num_tokens: int) -> bool:
        counts = typical_counts(config, num_tokens)
        found = split(counts, known)
        alone_s = float(cpu_seconds(counts[counts > 0].astype(float), known)[0])
        return bool(found.device) and found.seconds + rates.gpus[0].layer.value < alone_s

    if least > most or not pays(most):
        return None
    low, high = least - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def hot_pays(rates: Rates, config: ModelConfig, num_experts: int) -> bool:
    """Whether so many experts on the first GPU save a step more than their launches take, were they chosen at random.

    They are those that are chosen most, so it pays at least as much.
    """
    share = num_experts / (config.num_moe_layers * config.num_experts)
    known = split_rates(rates, config)
    saved_s = share * config.top_k * (known.cpu_expert_s + known.cpu_token_s)
    return saved_s > HOT_LAUNCHES * rates.gpus[0].launch.value


def layer_times(rates: Rates, config: ModelConfig, placement: Placement, context: int, num_streams: int) -> LayerTimes:
    """Of a step beside the first GPU: its part of a layer with routed experts, and the CPU's."""
    term = step(rates, config, placement, context, num_streams)
    mixture_s, others = term.find("mixture").seconds, ("head", "beside the network", "mixture")
    device_s = sum(part.seconds for part in term.parts if part.name not in others)
    return LayerTimes(device_s / config.num_layers, mixture_s / max(1, config.num_moe_layers))


def alternates(rates: Rates, config: ModelConfig, placement: Placement, context: int, num_streams: int) -> bool:
    """Whether steps of so many streams go as two batches that alternate."""
    if num_streams < 2 or not config.num_moe_layers:
        return False
    whole, half = (layer_times(rates, config, placement, context, n) for n in (num_streams, -(-num_streams // 2)))
    return alternation_pays(whole, half)

"""What GPUs are sent: experts from DRAM, and with SmallEP each other's tokens and partial sums."""

from localmoe.engine.cost.rates import Rate, Rates
from localmoe.engine.cost.sizes import BF16_BYTES
from localmoe.engine.cost.term import Term, moved
from localmoe.model.config import ModelConfig

EXCHANGES = 2  # of rows in a layer: tokens before the experts, partial sums after them


def link(rates: Rates, num_gpus: int) -> Rate:
    """Bytes/s of experts to each of the GPUs while all of them load: the link, the root they share, or DRAM."""
    share = 1 / num_gpus
    limits = [gpu.h2d for gpu in rates.gpus[:num_gpus]] + [rates.cpu.stream.times(share)]
    if rates.h2d_together and num_gpus > 1:
        limits.append(rates.h2d_together.times(share))
    return min(limits, key=lambda rate: rate.value)


def exchange(rates: Rates, config: ModelConfig, num_tokens: int, num_gpus: int) -> tuple[Term, Term]:
    """SmallEP (SLP paper): each GPU gathers the others' tokens, computes its experts, and swaps partial sums.

    Returns what leaves a GPU and what comes in. Without a way between GPUs rows pass through pinned memory: out, then
    in, over the link that the experts use.
    """
    others = (num_gpus - 1) / num_gpus
    num_bytes = others * EXCHANGES * config.num_moe_layers * num_tokens * config.hidden * BF16_BYTES
    gpu = rates.gpus[0]
    if gpu.peer:
        return moved("to other GPUs", num_bytes, gpu.peer), moved("rows in", 0.0, gpu.peer)
    rate = link(rates, num_gpus)
    return moved("rows out", num_bytes, rate), moved("rows in", num_bytes, rate)

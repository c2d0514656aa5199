"""What a plan's first GPU does beside the CPU: medium prompts whose experts both compute, steps, and hot experts."""

from dataclasses import dataclass, replace

from localmoe.engine.cost.gpu_scratch import mixtures_bytes, own_bytes
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.sharing import alternates, hot_pays, shares_from, split_rates
from localmoe.engine.plan import choices
from localmoe.engine.plan.amounts import gigabytes
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.parts import Decision, Sharing
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.engine.scratch import scratch_bytes
from localmoe.model.config import ModelConfig

CPU_CHUNK = 4096  # tokens of a prompt that is not streamed: the SLP paper's CPU path takes so many
MIXED_TOKENS = 1024  # of a prompt that is shared: scratch for more would take the ring's room
NUM_TILES = 4  # prefill/early.py
MIXED_SLOTS = 4  # experts on their way or being computed
EARLY_FROM = 64  # tokens of a prompt that is cut in tiles, so that rows for the CPU's experts cross beside attention
LEAST_MIXED = MAX_BATCH + 1  # tokens: steps are issued ahead, which sharing cannot be


@dataclass(frozen=True, slots=True)
class Beside:
    """What is decided before the crossover is known, and its bytes on the first GPU."""

    sharing: Sharing
    most: int  # tokens of a prompt that is not streamed, at once
    slot_bytes: int
    scratch_bytes: int

    @property
    def num_bytes(self) -> int:
        """Of all of it, but hot experts."""
        return self.slot_bytes + self.scratch_bytes


def plan_beside(asked: Asked, rates: Rates, num_gpus: int) -> Beside:
    """`rates` are those of the plan's GPUs. What hot experts get is what everything else leaves."""
    config = asked.config
    most = most_tokens(asked)
    mixed_tokens = min(most, MIXED_TOKENS)
    mixed_from = shares_from(rates, config, LEAST_MIXED, mixed_tokens)
    context, _ = choices.wanted_context(config, asked.settings)
    placement = Placement(num_gpus, most)
    steps = range(2, MAX_BATCH + 1)
    sharing = Sharing(
        mixed_from=mixed_from,
        mixed_tokens=mixed_tokens if mixed_from else 0,
        slots=MIXED_SLOTS if mixed_from else 0,
        rates=split_rates(rates, config),
        alternates=any(alternates(rates, config, placement, max(1, context // n), n) for n in steps),
        num_hot=0,
    )
    cache_tokens = choices.fit_cache(asked, "bf16", None).num_tokens
    return Beside(sharing, most, sharing.slots * asked.expert_bytes, _scratch(config, sharing, most, cache_tokens))


def _scratch(config: ModelConfig, sharing: Sharing, most: int, cache_tokens: int) -> int:
    """Of short prompts, of those in tiles or shared, and of each batch of a step, with hot experts."""
    short, tiled = (sharing.mixed_from - 1, sharing.mixed_tokens) if sharing.mixed_from else (EARLY_FROM - 1, most)
    own = own_bytes(config, short, cache_tokens) + NUM_TILES * own_bytes(config, -(-tiled // NUM_TILES), cache_tokens)
    step = own_bytes(config, MAX_BATCH, cache_tokens) + mixtures_bytes(config, MAX_BATCH)
    return (
        own + mixtures_bytes(config, sharing.mixed_tokens) * bool(sharing.mixed_from) + (1 + sharing.alternates) * step
    )


def most_tokens(asked: Asked) -> int:
    """Of a prompt that is not streamed, at once: as asked for, or what the context and CPU_CHUNK allow."""
    if asked.settings.origin("prefill_chunk") != "default":
        return asked.settings.prefill_chunk
    return min(CPU_CHUNK, choices.wanted_context(asked.config, asked.settings)[0])


def with_hot(asked: Asked, rates: Rates, sharing: Sharing, spare_bytes: int) -> Sharing:
    """With as many hot experts as `spare_bytes` hold, if those are worth their launches."""
    config = asked.config
    num = min(config.num_moe_layers * config.num_experts, max(0, spare_bytes) // asked.expert_bytes)
    return replace(sharing, num_hot=num if num and hot_pays(rates, config, num) else 0)


def until(sharing: Sharing, streamed_from: int | None) -> Sharing:
    """Without shared prompts where those that are long enough are streamed already."""
    if sharing.mixed_from and streamed_from is not None and streamed_from <= sharing.mixed_from:
        return replace(sharing, mixed_from=None, mixed_tokens=0, slots=0)
    return sharing


def takes_turns(streamed_from: int | None, num_gpus: int) -> bool:
    """Whether streamed prompts leave the GPU to steps between tiles, or only have a lower priority there.

    A step's layer is many small kernels. Where each goes first only when blocks of a prompt end, each may wait for a
    tile; where the prompt leaves, all of them together wait for one. Several GPUs wait for each other within a layer,
    so one that leaves would hold up all.
    """
    return streamed_from is not None and num_gpus == 1


def dram_scratch(asked: Asked, sharing: Sharing, chunk: int, passing: int, threads: int) -> int:
    """The CPU's part of every program: of prompts as they are long, and steps with and without hot experts."""
    steps = (1 + sharing.alternates) * (1 + bool(sharing.num_hot))
    shared = (sharing.mixed_from - 1, sharing.mixed_tokens) if sharing.mixed_from else (chunk,)
    each = (*shared, *(MAX_BATCH,) * steps, *((passing,) if passing else ()))
    return sum(scratch_bytes(asked.config, tokens, threads, asked.isa) for tokens in each)


def decisions(asked: Asked, sharing: Sharing, streamed_from: int | None, name: str) -> tuple[Decision, ...]:
    """Medium prompts, alternation, hot experts and turns, on GPU `name`."""
    return (
        _mixed(sharing, streamed_from, name),
        _alternation(sharing),
        _hot(asked, sharing, name),
        *((_turns(sharing, name),) if streamed_from is not None else ()),
    )


def _mixed(sharing: Sharing, streamed_from: int | None, name: str) -> Decision:
    if sharing.mixed_from is None:
        shorter = (
            "" if streamed_from is None else f" shorter than the {streamed_from:,} tokens from which all are moved"
        )
        return Decision("medium prompts", "as short ones", f"moving some experts pays for no prompt{shorter}")
    end = "on" if streamed_from is None else f"to {streamed_from - 1:,}"
    return Decision(
        "medium prompts",
        f"experts on {name} and the CPU from {sharing.mixed_from:,} tokens {end}",
        f"an expert of many tokens is moved sooner than the CPU computes it; up to {sharing.mixed_tokens:,} tokens at"
        f" once, through {sharing.slots} slots",
    )


def _alternation(sharing: Sharing) -> Decision:
    if not sharing.alternates:
        return Decision("batches of a step", "one", "two would read nearly as many weights each, which takes longer")
    why = "GPU and CPU take about as long for a layer, so each computes one batch while the other has the other"
    return Decision("batches of a step", "two, once steps were measured", why)


def _hot(asked: Asked, sharing: Sharing, name: str) -> Decision:
    if not sharing.num_hot:
        return Decision("hot experts", "none", f"{name} has no room left for as many as would be worth their launches")
    room = gigabytes(sharing.num_hot * asked.expert_bytes)
    why = f"those that are chosen most, once enough tokens were seen; {room} are left beside everything else"
    return Decision("hot experts", f"up to {sharing.num_hot:,} on {name}", why)


def _turns(sharing: Sharing, name: str) -> Decision:
    if not sharing.takes_turns:
        why = "GPUs that read one prompt wait for each other in every layer, so none leaves its part to a step"
        return Decision("decode's turns", "first by priority of their kernels", why)
    why = "so a layer's kernels wait for one tile together, and not each for one"
    return Decision("decode's turns", f"the prompt leaves {name} to them between two tiles", why)

"""The plan for a model larger than DRAM: some of the routed experts stay there, the others come from disk each time."""

from dataclasses import replace

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import forecast_decode
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.sizes import sizes_of
from localmoe.engine.plan import choices
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.in_dram import numa_decisions, scratch_item, weight_items
from localmoe.engine.plan.parts import DRAM, Decision, Item, Plan, Ring
from localmoe.engine.plan.refusal import refuse_dram
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.hardware.machine import Disk
from localmoe.model.config import ModelConfig

MOST_CHUNK = 4096  # tokens: each chunk reads all that is not resident once more
AHEAD = 2  # times the experts of a token: one layer's are computed while the next layer's come
NOT_DISKS = ("memory",)  # what lies there is in DRAM already


def plan_disk(asked: Asked) -> Plan:
    """Raises OutOfMemoryError where not even the other weights fit, or the disk is too small or its rate unknown.

    UsageError where all experts fit: then nothing comes from disk.
    """
    if why_not := why_no_disk(asked):
        raise OutOfMemoryError(
            f"{asked.name} cannot be read from disk while it runs: {why_not}.",
            "run it on a machine with more memory, or choose a smaller model",
        )
    config, settings, available = asked.config, asked.settings, asked.dram_bytes
    if available is None:
        raise UsageError(
            "the plan disk needs to know how much memory is available, and this system does not say",
            "--plan cpu runs without knowing it",
        )
    wanted = choices.wanted_context(config, settings, choices.LEAST_CONTEXT)
    chunk = _chunk(asked, wanted[0])
    threads, thread_decision = choices.choose_threads(asked)
    dtype = settings.cache_dtype
    one_page, expert = choices.page_bytes(config, dtype), sizes_of(config).expert.num_bytes
    ring = _ring(config)
    fixed = (
        scratch_item(asked, chunk, threads),
        Item(DRAM, "ring", ring.slots * expert),
        Item(DRAM, "reserve", choices.reserve(available)),
    )
    left = available - sum(item.num_bytes for item in fixed) - asked.weights.other - asked.weights.embedding
    longest = choices.longest_context(config, left, one_page)
    context, why = choices.fitting_context(wanted, settings, longest)
    pages = choices.choose_pages(context, one_page, None)
    left -= pages * one_page
    resident = max(0, left) // expert * expert
    items = (
        *weight_items(asked, routed_bytes=min(resident, asked.weights.routed)),
        fixed[0],
        Item(DRAM, "latent cache", pages * one_page),
        *fixed[1:],
    )
    if left < 0:
        raise refuse_dram(asked, items, context, longest, dtype)
    if resident >= asked.weights.routed:
        raise UsageError(
            f"the plan disk is for models larger than memory, and {asked.name} fits into it",
            "--plan cpu keeps it there",
        )
    placement = Placement(
        chunk=chunk,
        cache_element_bytes=choices.ELEMENT_BYTES[dtype],
        resident_share=resident / asked.weights.routed,
    )
    return Plan(
        kind="disk",
        isa=asked.isa,
        num_threads=threads,
        cache_dtype=dtype,
        chunk=chunk,
        context_limit=context,
        num_pages=pages,
        items=items,
        decisions=(
            Decision("prefill", "attention and experts on the CPU", "whole layers come from disk for each chunk"),
            Decision(
                "decode", "attention and experts on the CPU", "chosen experts come from disk unless DRAM holds them"
            ),
            *_disk_decisions(asked, placement, ring, context),
            *numa_decisions(asked, items),
            choices.isa_decision(asked),
            thread_decision,
            Decision("context", f"{context:,} tokens", _why_short(why, settings.context)),
            choices.cache_decision(config, dtype, pages, DRAM),
            Decision("prefill chunks", f"{chunk:,} tokens", "the fewer chunks, the less often the disk is read"),
            *choices.sharing_decisions(asked),
        ),
        placement=placement,
        crossover_tokens=None,
        ring=ring,
        urgent_share=choices.URGENT_SHARE,
        shared=choices.shared_copy(asked),
        available={DRAM: available},
        longest_context=longest,
    )


def disk_hint(asked: Asked) -> str:
    """What the plan from disk would do for whoever is refused, or why it would not help."""
    if why_not := why_no_disk(asked):
        return f"reading experts from disk is no way out: {why_not}"
    try:
        plan = plan_disk(replace(asked, settings=replace(asked.settings, context=None)))
    except OutOfMemoryError as error:
        return f"reading experts from disk is no way out: {error.message.rstrip('.')}"
    except UsageError:  # the experts would fit, and it is the context that does not
        return ""
    speed = decode_speed(asked.rates, asked.config, plan.placement, plan.context_limit)
    if asked.executable_only:
        return f"reading experts from disk would make {speed}, but this version cannot run that plan yet"
    return f"--plan disk reads experts from disk, {speed}"


def decode_speed(rates: Rates, config: ModelConfig, placement: Placement, context: int) -> str:
    """Honest: "about 0.9 tok/s"."""
    forecast = forecast_decode(rates, config, placement, context)
    return f"about {forecast.tok_s:.2g} tok/s"


def why_no_disk(asked: Asked) -> str:
    """Why no disk can feed the model; empty where one can."""
    if not asked.config.num_moe_layers:
        return "it has no routed experts"
    if asked.rates.disk is None:
        return "how fast the disk is read is unknown (localmoe doctor --measure finds out)"
    disk = models_disk(asked)
    if disk is not None and disk.kind in NOT_DISKS:
        return f"{disk.path} is in memory itself"
    if asked.on_disk:
        return ""
    if disk is None or disk.free_bytes is None:
        return "how much room the disk has is unknown"
    if disk.free_bytes < asked.weights.total:
        missing = asked.weights.total - disk.free_bytes
        return f"{disk.path} has {disk.free_bytes / 1e9:,.1f} GB free, {missing / 1e9:,.1f} GB too little"
    return ""


def models_disk(asked: Asked) -> Disk | None:
    """The one that models lie on, as far as it was probed."""
    disks = asked.machine.disks
    return next((disk for disk in disks if disk.purpose == "models"), disks[0] if disks else None)


def _chunk(asked: Asked, context: int) -> int:
    if asked.settings.origin("prefill_chunk") != "default":
        return asked.settings.prefill_chunk
    return max(1, min(MOST_CHUNK, context))


def _ring(config: ModelConfig) -> Ring:
    return Ring(max(2, min(config.num_experts, AHEAD * config.top_k)), config.top_k)


def _disk_decisions(asked: Asked, placement: Placement, ring: Ring, context: int) -> tuple[Decision, ...]:
    rates = asked.rates
    assert rates.disk is not None
    speed = decode_speed(rates, asked.config, placement, context)
    rate = f"{'about ' * rates.disk.is_estimate}{rates.disk.value / 1e9:,.1f} GB/s"
    missing = asked.weights.routed * (1 - placement.resident_share)
    return (
        Decision(
            "routed experts",
            f"{placement.resident_share:.0%} in DRAM",
            f"the other {missing / 1e9:,.1f} GB come from disk each time, at {rate}: {speed}",
        ),
        Decision(
            "ring",
            f"{ring.slots} experts",
            f"{ring.group_experts} are computed while the next {ring.group_experts} come",
        ),
    )


def _why_short(why: str, asked_for: int | None) -> str:
    return why if asked_for else f"{why}; each token comes slowly, and cache takes room from experts"

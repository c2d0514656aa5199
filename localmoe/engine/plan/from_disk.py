"""The plan for a model larger than DRAM: some of the routed experts stay there, the others come from disk each time.

Where the plan is forced and all of the model would fit, none of them stays: whoever asks for it wants to see it.
"""

from dataclasses import dataclass, replace

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import forecast_decode
from localmoe.engine.cost.sizes import sizes_of
from localmoe.engine.disk_slots import disk_slots
from localmoe.engine.plan import choices
from localmoe.engine.plan.amounts import gigabytes
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.choices import Cache
from localmoe.engine.plan.in_dram import numa_decisions, scratch_item, weight_items
from localmoe.engine.plan.parts import DRAM, Decision, Item, Plan, Ring
from localmoe.engine.plan.refusal import NO_DISK_HINT, DiskHint, refuse_dram
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.engine.scratch import scratch_bytes
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.hardware.machine import Disk
from localmoe.model.config import ModelConfig
from localmoe.weights.expert_files import room_bytes

MOST_CHUNK = 4096  # tokens: each chunk reads all that is not resident once more
AHEAD = 2  # times the experts of a token: one layer's are computed while the next layer's come
NOT_DISKS = ("memory",)  # what lies there is in DRAM already


@dataclass(frozen=True, slots=True)
class _InDram:
    """What lies in DRAM; `left` bytes of it for routed experts, below 0 where not even the rest fits."""

    items: tuple[Item, ...]
    cache: Cache
    ring: Ring
    chunk: int
    threads: int
    why_threads: Decision
    left: int
    placement: Placement
    has_room_for_all: bool = False  # and keeps none, as the plan is forced


def plan_disk(asked: Asked) -> Plan:
    """Raises OutOfMemoryError where not even the other weights fit, or the disk is too small or its rate unknown.

    UsageError where all experts fit and nobody asked for the plan: then nothing comes from disk. A plan that is forced
    needs no rate: only how fast it would be is then unknown.
    """
    if why_not := why_no_disk(asked):
        raise OutOfMemoryError(
            f"the experts of {asked.name} cannot come from disk: {why_not}.",
            "run it on a machine with more memory, or choose a smaller model",
        )
    assert asked.dram_bytes is not None
    found = _fill(asked, asked.dram_bytes)
    if found.left < 0:
        raise refuse_dram(asked, found.items, found.cache, found.chunk)
    if found.placement.resident_share == 1:
        if not _is_forced(asked):
            raise UsageError(
                f"the plan disk is for models larger than memory, and {asked.name} fits into it",
                "--plan cpu keeps all of it there",
            )
        found = _fill(asked, asked.dram_bytes, keeps_none=True)
    return Plan(
        kind="disk",
        isa=asked.isa,
        num_threads=found.threads,
        cache_dtype=found.cache.dtype,
        chunk=found.chunk,
        context_limit=found.cache.context,
        num_pages=found.cache.num_pages,
        items=found.items,
        decisions=_decisions(asked, found),
        placement=found.placement,
        crossover_tokens=None,
        ring=found.ring,
        urgent_share=choices.EQUAL_SHARE,
        shared=choices.shared_copy(asked),
        available={DRAM: asked.dram_bytes},
        longest_context=found.cache.longest,
    )


def disk_hint(asked: Asked) -> DiskHint:
    """What the plan from disk would do for whoever is refused, or why it would not help."""
    if asked.dram_bytes is None:
        return NO_DISK_HINT
    if why_not := why_no_disk(asked):
        return DiskHint(note=f"experts cannot come from disk: {why_not}")
    found = _fill(replace(asked, settings=replace(asked.settings, context=None)), asked.dram_bytes)
    if found.left < 0:
        needed = sum(item.num_bytes for item in found.items)
        return DiskHint(note=f"even with its experts on disk it needs {gigabytes(needed)} of memory")
    if found.placement.resident_share == 1:  # it is the context that does not fit
        return NO_DISK_HINT
    speed = decode_speed(asked, found.placement, found.cache.context)
    return DiskHint(f"--plan disk reads experts from disk, {speed}")


def decode_speed(asked: Asked, placement: Placement, context: int) -> str:
    """Honest: "about 0.9 tok/s"."""
    tok_s = forecast_decode(asked.rates, asked.config, placement, context).tok_s
    return f"about {tok_s:,.0f} tok/s" if tok_s >= 10 else f"about {tok_s:.2g} tok/s"


def why_no_disk(asked: Asked) -> str:
    """Why no disk can feed the model; empty where one can."""
    if not asked.config.num_moe_layers:
        return "it has no routed experts"
    if asked.dram_bytes is None:
        return "how much memory is available is unknown"
    if asked.rates.disk is None and not _is_forced(asked):
        return "how fast the disk is read is unknown (localmoe doctor --measure finds out)"
    disk = _models_disk(asked)
    if disk is not None and disk.kind in NOT_DISKS:
        return f"{disk.path} is in memory itself"
    if asked.on_disk:
        return ""
    if disk is None or disk.free_bytes is None:
        return "how much room the disk has is unknown"
    if disk.free_bytes < asked.weights.total:
        missing = gigabytes(asked.weights.total - disk.free_bytes)
        return f"{disk.path} has {gigabytes(disk.free_bytes)} free, {missing} too little"
    return ""


def _is_forced(asked: Asked) -> bool:
    return asked.settings.plan == "disk"


def _models_disk(asked: Asked) -> Disk | None:
    """The one that models lie on, as far as it was probed."""
    disks = asked.machine.disks
    return next((disk for disk in disks if disk.purpose == "models"), disks[0] if disks else None)


def _fill(asked: Asked, available: int, *, keeps_none: bool = False) -> _InDram:
    """Everything but routed experts first, in whole experts what is left.

    With `keeps_none`, where all would fit, no routed expert; the context is then as long as that of other plans.
    """
    config, expert = asked.config, sizes_of(asked.config).expert.num_bytes
    dtype = asked.settings.cache_dtype
    chunk = _chunk(asked)
    threads, why_threads = choices.choose_threads(asked)
    ring = _ring(config)
    programs = [disk_slots(config, ring.slots, tokens) for tokens in (chunk, MAX_BATCH)]
    scratch = _scratch(asked, chunk, threads, [slots.few for slots in programs if slots.group])
    others = (
        Item(DRAM, "ring", sum(slots.num_experts for slots in programs) * room_bytes(asked.expert_bytes)),
        Item(DRAM, "reserve", choices.reserve(available)),
    )
    left = available - asked.weights.other - asked.weights.embedding
    left -= sum(item.num_bytes for item in (scratch, *others))
    context = choices.DEFAULT_CONTEXT if keeps_none else choices.LEAST_CONTEXT
    cache = choices.fit_cache(asked, dtype, left, context)
    left -= cache.num_bytes
    resident = 0 if keeps_none else min(asked.weights.routed, max(0, left) // expert * expert)
    weights = weight_items(asked, routed_bytes=resident)
    placement = Placement(
        chunk=chunk,
        cache_element_bytes=choices.ELEMENT_BYTES[dtype],
        resident_share=resident / asked.weights.routed,
    )
    items = (*weights, Item(DRAM, "latent cache", cache.num_bytes), scratch, *others)
    return _InDram(items, cache, ring, chunk, threads, why_threads, left, placement, keeps_none)


def _scratch(asked: Asked, chunk: int, threads: int, few: list[int]) -> Item:
    """A program for longer runs has one for `few` tokens beside it."""
    scratch = scratch_item(asked, threads, chunk)
    beside = sum(scratch_bytes(asked.config, tokens, threads, asked.isa) for tokens in few)
    return replace(scratch, num_bytes=scratch.num_bytes + beside)


def _chunk(asked: Asked) -> int:
    if asked.settings.origin("prefill_chunk") != "default":
        return asked.settings.prefill_chunk
    return min(MOST_CHUNK, choices.wanted_context(asked.config, asked.settings, choices.LEAST_CONTEXT)[0])


def _ring(config: ModelConfig) -> Ring:
    return Ring(max(2, min(config.num_experts, AHEAD * config.top_k)), config.top_k)


def _decisions(asked: Asked, found: _InDram) -> tuple[Decision, ...]:
    return (
        Decision("prefill", "attention and experts on the CPU", "whole layers come from disk for each chunk"),
        Decision("decode", "attention and experts on the CPU", "chosen experts that DRAM does not hold come from disk"),
        *_disk_decisions(asked, found),
        *numa_decisions(asked, found.items),
        choices.isa_decision(asked),
        found.why_threads,
        *_cache(asked, found).decisions(DRAM),
        choices.chunk_decision(asked, found.chunk, "the fewer chunks, the less often the disk is read"),
        *choices.sharing_decisions(asked, choices.turns_decision()),
    )


def _cache(asked: Asked, found: _InDram) -> Cache:
    why = f"{found.cache.why}; each token comes slowly, and a longer cache takes room from experts"
    return found.cache if asked.settings.context or found.has_room_for_all else replace(found.cache, why=why)


def _disk_decisions(asked: Asked, found: _InDram) -> tuple[Decision, ...]:
    share, group = found.placement.resident_share, found.ring.group_experts
    from_disk = f"{gigabytes(round(asked.weights.routed * (1 - share)))} come from disk at {_rate(asked, found)}"
    if found.has_room_for_all:
        asked_by = f"all of it would fit into memory: asked for by {asked.settings.said_by('plan')}"
        routed = Decision("routed experts", "none in DRAM", f"{asked_by}; {from_disk}")
    else:
        routed = Decision("routed experts", f"{share:.0%} in DRAM", f"the other {from_disk}")
    return (
        routed,
        Decision("ring", f"{found.ring.slots} experts", f"{group} are computed while the next {group} come"),
        *_unused_gpus(asked),
    )


def _rate(asked: Asked, found: _InDram) -> str:
    """Of the disk, and what comes of it."""
    disk = asked.rates.disk
    if disk is None:
        return "a rate that is unknown (localmoe doctor --measure finds out)"
    speed = decode_speed(asked, found.placement, found.cache.context)
    return f"{'about ' * disk.is_estimate}{disk.value / 1e9:,.1f} GB/s: {speed}"


def _unused_gpus(asked: Asked) -> tuple[Decision, ...]:
    if not asked.machine.gpus:
        return ()
    return (Decision("GPUs", "not used", "experts from disk are computed where DRAM has the others"),)

"""The plans with GPUs: attention there, routed experts on the CPU, and streamed to the GPUs for long prompts.

One GPU: stream-loading prefill (SLP). Several: each streams its part of every layer's experts (DSLP), or the last one
all of them while answers are written.
"""

from collections.abc import Sequence
from dataclasses import replace

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import crossover
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.sizes import BF16_BYTES
from localmoe.engine.plan import beside, choices, gpus
from localmoe.engine.plan.alone import plan_alone
from localmoe.engine.plan.amounts import gigabytes
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.beside import Beside
from localmoe.engine.plan.from_disk import disk_hint
from localmoe.engine.plan.gpus import Usable, Vram
from localmoe.engine.plan.in_dram import numa_decisions, part, weight_items
from localmoe.engine.plan.parts import DRAM, Decision, Item, Plan, Sharing
from localmoe.engine.plan.passing import no_passing, plan_passing
from localmoe.engine.plan.refusal import refuse_dram
from localmoe.errors import OutOfMemoryError, UsageError

LEAST_CHUNK = 64  # tokens
WAYS = 2  # rows go to the other device and come back


def plan_gpus(asked: Asked, usable: Usable, *, passes: bool = True) -> Plan:
    """Raises OutOfMemoryError where DRAM or a GPU is too small. `passes`: short prompts pass longer ones."""
    locked, why_locked = gpus.locks_experts(asked.machine, asked.weights.routed)
    rates = gpus.rates_for(asked.rates, usable.gpus, (usable.free_bytes,) * usable.count, locked=locked)
    together = beside.plan_beside(asked, rates, usable.count)
    rooms = (usable.free_bytes - together.num_bytes,) * usable.count
    rates = gpus.rates_for(asked.rates, usable.gpus, rooms, locked=locked)
    vram = gpus.fill_vram(asked, rates, usable, _beside_items(together), lambda: _longest_context(asked, usable))
    short = (
        plan_passing(asked, rates, vram, usable.count, together.most, usable.names[0]) if passes else no_passing(vram)
    )
    vram, beside_bytes = short.vram, together.num_bytes + short.num_bytes
    rates = gpus.rates_for(asked.rates, usable.gpus, (usable.free_bytes - beside_bytes,) * usable.count, locked=locked)
    placement, streamed_from = _place(asked, rates, usable, vram, together)
    sharing = beside.until(together.sharing, streamed_from)
    unused = (together.sharing.slots - sharing.slots) * asked.expert_bytes
    sharing = beside.with_hot(asked, rates, sharing, vram.spare + unused)
    sharing = replace(sharing, takes_turns=beside.takes_turns(streamed_from, usable.count))
    alone = None
    if streamed_from is not None and usable.count > 1:
        alone = plan_alone(asked, usable, vram, streamed_from)
    threads, why_threads = choices.choose_threads(asked, usable.count)
    in_dram = _in_dram(asked, placement.chunk, threads, usable, vram, sharing, short.tokens)
    if asked.dram_bytes is not None and sum(item.num_bytes for item in in_dram) > asked.dram_bytes:
        if short.tokens:
            return plan_gpus(asked, usable, passes=False)
        raise refuse_dram(asked, in_dram, None, placement.chunk, disk_hint(asked))
    apart = (short.decision, *((alone.decision,) if alone else ()))
    free = {name: gpus.free_bytes(asked.machine, n) for n, name in zip(usable.gpus, usable.names, strict=True)}
    return Plan(
        kind="slp" if usable.count == 1 else "dslp",
        isa=asked.isa,
        num_threads=threads,
        cache_dtype=vram.cache.dtype,
        chunk=placement.chunk,
        context_limit=vram.cache.context,
        num_pages=vram.cache.num_pages,
        items=(
            *in_dram,
            *_on_gpus(asked, usable, vram, together, sharing),
            *short.items,
            *(alone.items if alone else ()),
        ),
        decisions=_decisions(
            asked, usable, vram, placement.chunk, streamed_from, sharing, apart, in_dram, (why_locked, why_threads)
        ),
        placement=placement,
        crossover_tokens=streamed_from,
        ring=vram.ring,
        urgent_share=choices.MOST_SHARE,
        shared=choices.shared_copy(asked),
        available=({} if asked.dram_bytes is None else {DRAM: asked.dram_bytes}) | free,
        longest_context=vram.cache.longest,
        gpus=usable.gpus,
        locks_experts=locked,
        pass_tokens=None if streamed_from is None else vram.pass_tokens,
        alone_tokens=alone.tokens if alone else None,
        sharing=sharing,
        passing_tokens=short.tokens,
        beside_bytes=beside_bytes,
    )


def _longest_context(asked: Asked, usable: Usable) -> int:
    """That fits where one that was asked for does not; scratch is smaller then, too. 0 where none does."""
    if asked.settings.context is None:
        return 0
    try:
        return plan_gpus(replace(asked, settings=replace(asked.settings, context=None)), usable).longest_context
    except OutOfMemoryError:
        return 0


def _beside_items(together: Beside) -> tuple[tuple[str, int], ...]:
    """On the first GPU alone."""
    return ("scratch beside the CPU", together.scratch_bytes), ("slots of shared experts", together.slot_bytes)


def _on_gpus(asked: Asked, usable: Usable, vram: Vram, together: Beside, sharing: Sharing) -> tuple[Item, ...]:
    """What lies on each, and what only the first one has."""
    each = asked.expert_bytes
    mine = {"slots of shared experts": sharing.slots * each, "hot experts": sharing.num_hot * each}
    scratch = ("scratch beside the CPU", together.scratch_bytes)
    first = (*vram.items, scratch, *((name, nbytes) for name, nbytes in mine.items() if nbytes))
    found = ((place, vram.items if n else first) for n, place in enumerate(usable.names))
    return tuple(Item(place, name, nbytes) for place, items in found for name, nbytes in items)


def _decisions(
    asked: Asked,
    usable: Usable,
    vram: Vram,
    chunk: int,
    streamed_from: int | None,
    sharing: Sharing,
    apart: tuple[Decision, ...],
    in_dram: tuple[Item, ...],
    whys: tuple[Decision, Decision],
) -> tuple[Decision, ...]:
    why_locked, why_threads = whys
    return (
        *_device_decisions(usable, streamed_from, vram),
        *beside.decisions(asked, sharing, streamed_from, usable.names[0]),
        *apart,
        *((_exchange_decision(asked, usable),) if usable.count > 1 else ()),
        *_ring_decisions(asked, usable, vram),
        why_locked,
        _weights_decision(asked, vram, usable.count),
        *numa_decisions(asked, in_dram),
        choices.isa_decision(asked),
        why_threads,
        *vram.cache.decisions(" and ".join(usable.names)),
        choices.chunk_decision(asked, chunk, "a prompt that is not streamed is read in such pieces"),
        *choices.sharing_decisions(asked, choices.beside_gpus_decision(usable.names[0])),
    )


def best_gpu(asked: Asked) -> Usable:
    """The one with the most room; UsageError with the reason where none can be used."""
    found = gpus.usable_gpus(asked)
    if not found:
        raise UsageError(f"the plan slp needs a GPU: {gpus.why_no_gpu(asked)}", "--plan cpu needs none")
    return _usable(asked, found[:1])


def all_gpus(asked: Asked) -> Usable:
    """All with at least half the room of the roomiest; UsageError with the reason where there are fewer than two.

    What lies on them is the same on each: a small one, for the screen, would leave the others half empty.
    """
    usable = gpus.usable_gpus(asked)
    found = [gpu for gpu in usable if 2 * gpu[1] >= usable[0][1]]
    if len(found) < 2:
        small = f"; {len(usable) - len(found)} more with less than half of its room" if len(usable) > len(found) else ""
        why = f"this machine has {len(found)} that can be used{small}" if found else gpus.why_no_gpu(asked)
        can = "--plan slp uses one" if found else "--plan cpu needs none"
        raise UsageError(f"the plan dslp needs two GPUs: {why}", can)
    return _usable(asked, found)


def _usable(asked: Asked, found: Sequence[tuple[int, int]]) -> Usable:
    """`found`: places and free bytes, the roomiest first."""
    places = tuple(sorted(n for n, _ in found))
    return Usable(places, tuple(gpus.name_of(asked.machine, n) for n in places), found[-1][1])


def _place(asked: Asked, rates: Rates, usable: Usable, vram: Vram, together: Beside) -> tuple[Placement, int | None]:
    """What runs where, and the shortest prompt that is streamed: a longer one needs no room on the CPU."""
    most = together.most
    placement = Placement(usable.count, most, BF16_BYTES, group_experts=vram.ring.group_experts)
    streamed_from = crossover(rates, replace(asked.config, max_position=vram.cache.longest), placement)
    if streamed_from is None:
        return placement, None
    return replace(placement, chunk=min(most, max(LEAST_CHUNK, streamed_from))), streamed_from


def _in_dram(
    asked: Asked, chunk: int, threads: int, usable: Usable, vram: Vram, sharing: Sharing, passing: int
) -> tuple[Item, ...]:
    rows = max(chunk, vram.pass_tokens) + passing
    buffers = WAYS * usable.count * rows * asked.config.hidden * BF16_BYTES
    return (
        *weight_items(asked),
        Item(DRAM, "latent cache", vram.cache.num_bytes),
        Item(DRAM, "scratch", beside.dram_scratch(asked, sharing, chunk, passing, threads)),
        Item(DRAM, "rows to and from GPUs", buffers),
        Item(DRAM, "reserve", choices.reserve(asked.weights.routed)),
    )


def _device_decisions(usable: Usable, streamed_from: int | None, vram: Vram) -> tuple[Decision, ...]:
    mixed = f"attention on {usable.names[0]}, experts on the CPU"
    return (
        Decision("prefill", mixed, "a short prompt does not pay for moving every expert"),
        _stream_decision(usable, streamed_from, vram),
        Decision("decode", mixed, "a token's experts are read in DRAM faster than they could be moved"),
    )


def _stream_decision(usable: Usable, streamed_from: int | None, vram: Vram) -> Decision:
    if streamed_from is None:
        why = f"up to {vram.cache.longest:,} tokens the CPU computes experts faster than all of them could be moved"
        return Decision("long prompts", "as short ones", why)
    where = " and ".join(usable.names)
    each = f"; each GPU streams {part(usable.count)} of every layer's experts" if usable.count > 1 else ""
    return Decision(
        "long prompts",
        f"experts on {where} from {streamed_from:,} tokens on",
        f"from there on moving every expert once is predicted to take less time than computing them on the CPU{each}",
    )


def _weights_decision(asked: Asked, vram: Vram, count: int) -> Decision:
    return Decision(
        "weights",
        f"{gigabytes(asked.weights.total)} in DRAM, {gigabytes(vram.weights)} on {'each' if count > 1 else 'the'} GPU",
        "routed experts are most of the model and a token needs few of them; every token needs the rest, which is"
        " uploaded from there",
    )


def _exchange_decision(asked: Asked, usable: Usable) -> Decision:
    pairs = [
        pair
        for pair in asked.machine.gpu_pairs
        if {pair.first, pair.second} <= {asked.machine.gpus[n].index for n in usable.gpus}
    ]
    if pairs and all(pair.peer_to_peer for pair in pairs):
        return Decision("exchange", "directly between GPUs", "the driver lets each read the other's memory")
    why = next((pair.why_not for pair in pairs if pair.why_not), None) or "nothing says that they can"
    told = f"the GPUs cannot read each other's memory ({why}), so tokens and partial sums pass through it"
    return Decision("exchange", "through page-locked DRAM", told)


def _ring_decisions(asked: Asked, usable: Usable, vram: Vram) -> tuple[Decision, ...]:
    slots, group, tokens = vram.ring.slots, vram.ring.group_experts, vram.pass_tokens
    most = -(-asked.config.num_experts // usable.count)
    part = f"of {most} that a GPU computes of a layer: what weights, cache and scratch leave"
    what = "all that a GPU computes of a layer fit into" if slots >= most else f"{part} of"
    times = "once" if vram.num_passes == 1 else f"{vram.num_passes} times"
    why = f"scratch for {tokens:,} tokens fits beside the ring" + ("" if vram.num_passes == 1 else ", and not for more")
    return (
        Decision(
            "ring",
            f"{slots} experts in groups of {group}",
            f"{what} {gigabytes(usable.free_bytes)}; in smaller groups launches and events would take over"
            f" {gpus.OVERHEAD:.0%} of the time",
        ),
        Decision("passes", f"a prompt of {vram.cache.context:,} tokens streams the experts {times}", why),
    )

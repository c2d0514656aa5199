"""The plans with GPUs: attention there, routed experts on the CPU, and streamed to the GPUs for long prompts.

One GPU: stream-loading prefill (SLP). Several: each streams its part of every layer's experts (DSLP).
"""

from dataclasses import replace

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import crossover
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.sizes import BF16_BYTES
from localmoe.engine.plan import choices, gpus
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.from_disk import disk_hint
from localmoe.engine.plan.gpus import Usable, Vram
from localmoe.engine.plan.in_dram import numa_decisions, part, scratch_item, weight_items
from localmoe.engine.plan.parts import DRAM, Decision, Item, Plan
from localmoe.engine.plan.refusal import refuse_dram, refuse_vram
from localmoe.errors import UsageError

CPU_CHUNK = 4096  # tokens of a prompt that is not streamed: the SLP paper's CPU path takes so many
LEAST_CHUNK = 64  # tokens
WAYS = 2  # rows go to the other device and come back


def plan_gpus(asked: Asked, usable: Usable) -> Plan:
    """Raises OutOfMemoryError where DRAM or a GPU is too small."""
    config = asked.config
    locked, lock_decision = gpus.locks_experts(asked.machine, asked.weights.routed)
    rates = gpus.rates_for(asked.rates, usable.gpus, (usable.free_bytes,) * usable.count, locked=locked)
    vram = gpus.fill_vram(asked, rates, usable)
    if vram is None:
        raise _no_vram(asked, usable)
    placement, streamed_from = _place(asked, rates, usable, vram)
    chunk = placement.chunk
    threads, thread_decision = choices.choose_threads(asked, usable.count)
    in_dram = _in_dram(asked, chunk, threads, usable, vram)
    if asked.dram_bytes is not None and sum(item.num_bytes for item in in_dram) > asked.dram_bytes:
        raise refuse_dram(asked, in_dram, vram.context, vram.context, "bf16", disk_hint(asked))
    places = [f"GPU {n}" for n in usable.gpus]
    available = {place: gpus.free_bytes(asked.machine, n) for place, n in zip(places, usable.gpus, strict=True)}
    return Plan(
        kind="slp" if usable.count == 1 else "dslp",
        isa=asked.isa,
        num_threads=threads,
        cache_dtype="bf16",
        chunk=chunk,
        context_limit=vram.context,
        num_pages=vram.num_pages,
        items=(*in_dram, *(Item(place, name, nbytes) for place in places for name, nbytes in vram.items)),
        decisions=(
            *_device_decisions(asked, usable, streamed_from, vram),
            *_ring_decisions(asked, rates, usable, vram),
            lock_decision,
            Decision(
                "weights",
                f"{asked.weights.routed / 1e9:,.1f} GB in DRAM, {vram.weights / 1e9:,.1f} GB on each GPU",
                "routed experts are most of the model and each token needs few of them; every token needs the rest",
            ),
            *numa_decisions(asked, in_dram),
            choices.isa_decision(asked),
            thread_decision,
            Decision("context", f"{vram.context:,} tokens", vram.why),
            choices.cache_decision(config, "bf16", vram.num_pages, " and ".join(places)),
            Decision(
                "prefill chunks", f"{chunk:,} tokens", "so many of a prompt that is not streamed are read at once"
            ),
            *choices.sharing_decisions(asked),
        ),
        placement=placement,
        crossover_tokens=streamed_from,
        ring=vram.ring,
        urgent_share=choices.URGENT_SHARE,
        shared=choices.shared_copy(asked),
        available=({} if asked.dram_bytes is None else {DRAM: asked.dram_bytes}) | available,
        longest_context=vram.longest_context,
        gpus=usable.gpus,
        locks_experts=locked,
    )


def best_gpu(asked: Asked) -> Usable:
    """The one with the most room; UsageError with the reason where none can be used."""
    found = gpus.usable_gpus(asked)
    if not found:
        raise UsageError(f"the plan slp needs a GPU: {gpus.why_no_gpu(asked)}", "--plan cpu needs none")
    return Usable((found[0][0],), found[0][1])


def all_gpus(asked: Asked) -> Usable:
    """All that can be used; UsageError with the reason where there are fewer than two."""
    found = gpus.usable_gpus(asked)
    if len(found) < 2:
        why = gpus.why_no_gpu(asked) if not found else f"this machine has {len(found)} that can be used"
        can = "--plan slp uses one" if found else "--plan cpu needs none"
        raise UsageError(f"the plan dslp needs two GPUs: {why}", can)
    return Usable(tuple(sorted(n for n, _ in found)), found[-1][1])


def _no_vram(asked: Asked, usable: Usable) -> Exception:
    needed, context, beside_cache = gpus.least_vram(asked, usable.count)
    smallest = min(usable.gpus, key=lambda n: gpus.free_bytes(asked.machine, n))
    place = f"GPU {smallest}"
    one_page = choices.page_bytes(asked.config, "bf16")
    longest = choices.longest_context(asked.config, usable.free_bytes - beside_cache, one_page)
    items = [Item(place, name, nbytes) for name, nbytes in needed]
    return refuse_vram(asked, place, items, usable.free_bytes, context, longest)


def _place(asked: Asked, rates: Rates, usable: Usable, vram: Vram) -> tuple[Placement, int | None]:
    """What runs where, and the shortest prompt that is streamed: a longer one needs no room on the CPU."""
    chosen = asked.settings.origin("prefill_chunk") != "default"
    most = asked.settings.prefill_chunk if chosen else min(CPU_CHUNK, vram.context)
    placement = Placement(usable.count, most, BF16_BYTES, group_experts=vram.ring.group_experts)
    streamed_from = crossover(rates, replace(asked.config, max_position=vram.longest_context), placement)
    if streamed_from is None:
        return placement, None
    return replace(placement, chunk=min(most, max(LEAST_CHUNK, streamed_from))), streamed_from


def _in_dram(asked: Asked, chunk: int, threads: int, usable: Usable, vram: Vram) -> tuple[Item, ...]:
    rows = max(chunk, vram.pass_tokens)
    buffers = WAYS * usable.count * rows * asked.config.hidden * BF16_BYTES
    return (
        *weight_items(asked, with_others=False),
        scratch_item(asked, chunk, threads),
        Item(DRAM, "rows to and from GPUs", buffers),
        Item(DRAM, "reserve", choices.reserve(asked.weights.routed)),
    )


def _device_decisions(asked: Asked, usable: Usable, streamed_from: int | None, vram: Vram) -> tuple[Decision, ...]:
    first = f"GPU {usable.gpus[0]}"
    several = usable.count > 1
    streams = " and ".join(f"GPU {n}" for n in usable.gpus)
    long = (
        Decision(
            "long prompts",
            "never streamed",
            f"up to {vram.longest_context:,} tokens the CPU's experts are faster than moving all of them once",
        )
        if streamed_from is None
        else Decision(
            "long prompts",
            f"experts on {streams} from {streamed_from:,} tokens on",
            "there moving every expert once takes less time than the CPU takes to compute"
            + (f"; each GPU streams {part(usable.count)} of every layer's experts" if several else ""),
        )
    )
    return (
        Decision(
            "prefill", f"attention on {first}, experts on the CPU", "a short prompt does not pay for moving experts"
        ),
        long,
        Decision(
            "decode",
            f"attention on {first}, experts on the CPU",
            "a token's experts are read faster in DRAM than moved",
        ),
        *((_exchange_decision(asked, usable),) if several else ()),
    )


def _exchange_decision(asked: Asked, usable: Usable) -> Decision:
    pairs = [
        pair
        for pair in asked.machine.gpu_pairs
        if {pair.first, pair.second} <= {asked.machine.gpus[n].index for n in usable.gpus}
    ]
    if pairs and all(pair.peer_to_peer for pair in pairs):
        return Decision("exchange", "directly between GPUs", "the driver lets each read the other's memory")
    why = next((pair.why_not for pair in pairs if pair.why_not), None) or "nothing says that they reach each other"
    return Decision("exchange", "through page-locked DRAM", f"tokens and partial sums take that way because {why}")


def _ring_decisions(asked: Asked, rates: Rates, usable: Usable, vram: Vram) -> tuple[Decision, ...]:
    ring = vram.ring
    part = -(-asked.config.num_experts // usable.count)
    why = "a whole layer's part" if ring.slots >= part else f"of {part} in a layer's part"
    passes = (
        f"a prompt of {vram.context:,} tokens passes over the experts once"
        if vram.num_passes == 1
        else f"a prompt of {vram.context:,} tokens passes over the experts {vram.num_passes} times,"
        f" {vram.pass_tokens:,} tokens each, because scratch for all at once does not fit"
    )
    return (
        Decision(
            "ring",
            f"{ring.slots} experts in groups of {ring.group_experts}",
            f"{why}: what weights, cache and scratch for {vram.pass_tokens:,} tokens leave of"
            f" {usable.free_bytes / 1e9:,.1f} GB; smaller groups would spend over {gpus.OVERHEAD:.0%} on launches",
        ),
        Decision("passes", f"{vram.num_passes}", passes),
    )

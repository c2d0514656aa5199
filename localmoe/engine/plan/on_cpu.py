"""The plan that computes everything on the cores, all weights in DRAM."""

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.serving import Serving
from localmoe.engine.plan import choices
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.choices import Cache
from localmoe.engine.plan.in_dram import numa_decisions, scratch_item, weight_items
from localmoe.engine.plan.parts import DRAM, Decision, Item, Plan
from localmoe.engine.scheduler import PASSING_TOKENS
from localmoe.errors import OutOfMemoryError


def plan_cpu(asked: Asked) -> Plan:
    """Raises OutOfMemoryError with every line item where DRAM is too small."""
    chunk, dtype = asked.settings.prefill_chunk, asked.settings.cache_dtype
    passing = min(chunk, PASSING_TOKENS)
    threads, why_threads = choices.choose_threads(asked)
    weights = weight_items(asked)
    others = (
        scratch_item(asked, threads, chunk, passing),
        Item(DRAM, "reserve", choices.reserve(asked.weights.total)),
    )
    taken = sum(item.num_bytes for item in (*weights, *others))
    left = None if asked.dram_bytes is None else asked.dram_bytes - taken
    cache = choices.fit_cache(asked, dtype, left, sessions=choices.MAX_SESSIONS)
    items = (*weights, Item(DRAM, "latent cache", cache.num_bytes), *others)
    if left is not None and cache.num_bytes > left:
        raise _refuse(asked, items, cache)
    placement = Placement(chunk=chunk, cache_element_bytes=choices.ELEMENT_BYTES[dtype])
    serving = choices.choose_serving(asked, placement)
    return Plan(
        kind="cpu",
        isa=asked.isa,
        num_threads=threads,
        cache_dtype=dtype,
        chunk=chunk,
        context_limit=cache.context,
        num_pages=cache.num_pages,
        items=items,
        decisions=_decisions(asked, items, cache, why_threads, serving),
        placement=placement,
        crossover_tokens=None,
        ring=None,
        urgent_share=choices.MOST_SHARE,
        shared=choices.shared_copy(asked),
        available={} if asked.dram_bytes is None else {DRAM: asked.dram_bytes},
        longest_context=max(cache.longest, cache.context),
        batch=serving.batch,
        beside_chunk=serving.chunk,
        passing_tokens=passing,
    )


def _refuse(asked: Asked, items: tuple[Item, ...], cache: Cache) -> OutOfMemoryError:
    from localmoe.engine.plan.from_disk import disk_hint  # with the model of cost: not for who fits
    from localmoe.engine.plan.refusal import refuse_dram

    return refuse_dram(asked, items, cache, asked.settings.prefill_chunk, disk_hint(asked))


def _decisions(
    asked: Asked, items: tuple[Item, ...], cache: Cache, why_threads: Decision, serving: Serving
) -> tuple[Decision, ...]:
    why_chunk = "each weight is decoded for so many tokens at once, and scratch grows with them"
    return (
        Decision("prefill", "attention and experts on the CPU", "all cores work on a prompt, chunk by chunk"),
        Decision("decode", "attention and experts on the CPU", "a token reads its experts and all other weights once"),
        Decision(
            "weights",
            f"{asked.weights.total / 1e9:,.2f} GB in DRAM",
            "they lie there as in the checkpoint and are used in place",
        ),
        *numa_decisions(asked, items),
        choices.isa_decision(asked),
        why_threads,
        *cache.decisions(DRAM),
        choices.chunk_decision(asked, asked.settings.prefill_chunk, why_chunk),
        *choices.sharing_decisions(asked, *choices.together_decisions(asked.settings, serving)),
    )

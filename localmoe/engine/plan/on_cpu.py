"""The plan that computes everything on the cores, all weights in DRAM."""

from localmoe.engine.cost.placement import Placement
from localmoe.engine.plan import choices
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.from_disk import disk_hint
from localmoe.engine.plan.in_dram import numa_decisions, scratch_item, weight_items
from localmoe.engine.plan.parts import DRAM, Decision, Item, Plan
from localmoe.engine.plan.refusal import refuse_dram


def plan_cpu(asked: Asked) -> Plan:
    """Raises OutOfMemoryError with every line item where DRAM is too small."""
    config, settings = asked.config, asked.settings
    dtype, chunk = settings.cache_dtype, settings.prefill_chunk
    threads, thread_decision = choices.choose_threads(asked)
    fixed = (
        *weight_items(asked),
        scratch_item(asked, chunk, threads),
        Item(DRAM, "reserve", choices.reserve(asked.weights.total)),
    )
    one_page = choices.page_bytes(config, dtype)
    left = None if asked.dram_bytes is None else asked.dram_bytes - sum(item.num_bytes for item in fixed)
    longest = choices.longest_context(config, left, one_page)
    context, why = choices.fitting_context(choices.wanted_context(config, settings), settings, longest)
    pages = choices.choose_pages(context, one_page, left)
    items = (*fixed[:3], Item(DRAM, "latent cache", pages * one_page), *fixed[3:])
    if left is not None and pages * one_page > left:
        raise refuse_dram(asked, items, context, longest, dtype, disk_hint(asked))
    return Plan(
        kind="cpu",
        isa=asked.isa,
        num_threads=threads,
        cache_dtype=dtype,
        chunk=chunk,
        context_limit=context,
        num_pages=pages,
        items=items,
        decisions=(
            Decision("prefill", "attention and experts on the CPU", "all cores work on a prompt chunk by chunk"),
            Decision("decode", "attention and experts on the CPU", "weights stream once from DRAM for each token"),
            Decision(
                "weights",
                f"{asked.weights.total / 1e9:,.2f} GB in DRAM",
                "they lie there as in the checkpoint and are used in place",
            ),
            *numa_decisions(asked, items),
            choices.isa_decision(asked),
            thread_decision,
            Decision("context", f"{context:,} tokens", why),
            choices.cache_decision(config, dtype, pages, DRAM),
            chunk_decision(asked, chunk),
            *choices.sharing_decisions(asked),
        ),
        placement=Placement(chunk=chunk, cache_element_bytes=choices.ELEMENT_BYTES[dtype]),
        crossover_tokens=None,
        ring=None,
        urgent_share=choices.URGENT_SHARE,
        shared=choices.shared_copy(asked),
        available={} if asked.dram_bytes is None else {DRAM: asked.dram_bytes},
        longest_context=longest,
    )


def chunk_decision(asked: Asked, chunk: int) -> Decision:
    """How prompts are cut for the CPU."""
    origin = asked.settings.origin("prefill_chunk")
    chosen = "" if origin == "default" else f", chosen by {origin}"
    why = f"enough to decode each weight for many tokens at once, with scratch in proportion{chosen}"
    return Decision("prefill chunks", f"{chunk:,} tokens", why)

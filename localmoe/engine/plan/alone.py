"""Whether one of a plan's GPUs reads long prompts alone while answers are written, in room that the first one lacks."""

from dataclasses import dataclass

from localmoe.engine.cost.gpu_scratch import most_tokens, scratch_bytes
from localmoe.engine.plan import gpus
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.gpus import Usable, Vram
from localmoe.engine.plan.parts import Decision, Item

SCRATCH = "scratch for reading alone"


@dataclass(frozen=True, slots=True)
class Alone:
    """What the last GPU takes by itself, beside its part of what all do: `tokens` at once (None: nothing)."""

    decision: Decision
    tokens: int | None = None
    items: tuple[Item, ...] = ()


def plan_alone(asked: Asked, usable: Usable, vram: Vram, streamed_from: int) -> Alone:
    """The scratch for it is the room that is left on the last GPU; its ring serves both ways."""
    first, last = usable.names[0], usable.names[-1]
    room = gpus.free_bytes(asked.machine, usable.gpus[-1]) - sum(nbytes for _, nbytes in vram.items)
    cache_tokens = vram.cache.num_tokens
    tokens = most_tokens(asked.config, room, 1, cache_tokens, vram.pass_tokens)
    what = "beside answers"
    if tokens < streamed_from:
        why = f"{last} alone has room for {tokens:,} tokens at once, and from {streamed_from:,} on experts are streamed"
        return Alone(Decision(what, "all GPUs read long prompts", why))
    at_once = f"{last} reads long prompts alone, up to {tokens:,} tokens at once"
    why = f"steps then have {first} to themselves; a longer one, and any while no answer is written, is read by all"
    scratch = scratch_bytes(asked.config, tokens, 1, cache_tokens)
    return Alone(Decision(what, at_once, why), tokens, (Item(last, SCRATCH, scratch),))

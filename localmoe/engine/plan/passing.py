"""Which prompts a plan's first GPU and the CPU read while a longer one's run goes on, and the room for it."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from localmoe.engine.cost.exchange import link
from localmoe.engine.cost.gpu import LEAST_RING
from localmoe.engine.cost.gpu_scratch import own_bytes
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.prefill import with_attention_on_gpu
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.sizes import routed_bytes
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.choices import MOST_SHARE
from localmoe.engine.plan.gpus import Vram
from localmoe.engine.plan.parts import Decision, Item
from localmoe.engine.scheduler import MAX_BATCH, PASSING_TOKENS

SCRATCH = "scratch for prompts that pass"
RING_SHARE = 1 / 2  # of the ring, at most: with 17 slots for 26 on two 32 GB GPUs, 32K tokens of V3 take 3 % longer
WHAT = "short prompts"


@dataclass(frozen=True, slots=True)
class Passing:
    """Prompts of up to `tokens` pass (0: none does), with `items` on the first GPU; `vram` is what they leave."""

    decision: Decision
    vram: Vram
    tokens: int = 0
    items: tuple[Item, ...] = ()

    @property
    def num_bytes(self) -> int:
        """On the first GPU."""
        return sum(item.num_bytes for item in self.items)


def plan_passing(asked: Asked, rates: Rates, vram: Vram, num_gpus: int, most: int, name: str) -> Passing:
    """`most`: tokens of a prompt that is not streamed, at once. `name`: the first GPU, whose spare room comes first."""
    run_s, worth = _worth(asked, rates, num_gpus, most)
    cache_tokens, expert = vram.cache.num_tokens, asked.expert_bytes
    slots = vram.ring.slots - max(LEAST_RING, int(vram.ring.slots * RING_SHARE))
    room = vram.spare + slots * expert
    tokens = bisect_right(range(1, worth + 1), room, key=lambda n: own_bytes(asked.config, n, cache_tokens))
    if worth <= MAX_BATCH:
        return _none(vram, f"beside answers a few tokens may take as long as such a run's {run_s:,.2g} s")
    if tokens <= MAX_BATCH:
        return _none(vram, f"{name} has no room left for a second one")
    return _with(asked, vram, tokens, name, run_s)


def no_passing(vram: Vram) -> Passing:
    """Where DRAM has no room for it."""
    return _none(vram, "memory has no room left for a second one")


def _none(vram: Vram, why: str) -> Passing:
    return Passing(Decision(WHAT, "wait for a longer one's run", why), vram)


def _worth(asked: Asked, rates: Rates, num_gpus: int, most: int) -> tuple[float, int]:
    """Seconds of a run that is worth passing, and the longest prompt that does so in time.

    That run moves all experts once or, where none is streamed, is a whole chunk. While answers leave a prompt the least
    share of the workers it is to take no longer than that; so its length is far below the crossover too.
    """
    config, placement = asked.config, Placement(num_gpus, most)

    def seconds(num_tokens: int) -> float:
        return with_attention_on_gpu(rates, config, placement, num_tokens).seconds

    run_s = min(routed_bytes(config) / num_gpus / link(rates, num_gpus).value, seconds(most))
    return run_s, bisect_right(range(1, min(most, PASSING_TOKENS) + 1), (1 - MOST_SHARE) * run_s, key=seconds)


def _with(asked: Asked, vram: Vram, tokens: int, name: str, run_s: float) -> Passing:
    """Its scratch takes spare room, then slots."""
    num_bytes, expert = own_bytes(asked.config, tokens, vram.cache.num_tokens), asked.expert_bytes
    taken = -(-max(0, num_bytes - vram.spare) // expert)
    slots = vram.ring.slots - taken
    ring = replace(vram.ring, slots=slots, group_experts=max(1, min(vram.ring.group_experts, slots // 2)))
    left = replace(vram, ring=ring, ring_bytes=slots * expert, spare=vram.spare + taken * expert - num_bytes)
    what = f"those of up to {tokens} tokens pass longer ones"
    why = f"{name} and the CPU read them while another one's run of {run_s:,.2g} s or more goes on, answers before them"
    return Passing(Decision(WHAT, what, why), left, tokens, (Item(name, SCRATCH, num_bytes),))

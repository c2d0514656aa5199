"""Which GPUs a plan may use, what they have room for, and how fast they are fed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localmoe.engine.cost import gpu as on_gpu
from localmoe.engine.cost.exchange import link
from localmoe.engine.cost.gpu_scratch import most_tokens, scratch_bytes
from localmoe.engine.cost.prefill import GROUP_EVENTS, GROUP_LAUNCHES
from localmoe.engine.cost.rates import Rate, Rates
from localmoe.engine.cost.sizes import common_bytes, sizes_of
from localmoe.engine.plan import choices
from localmoe.engine.plan.amounts import gigabytes
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.choices import Cache
from localmoe.engine.plan.parts import Decision, Item, Ring
from localmoe.engine.plan.refusal import refuse_vram
from localmoe.errors import OutOfMemoryError
from localmoe.hardware.machine import Machine
from localmoe.model.config import ModelConfig

LEAST_CAPABILITY = (8, 0)  # BF16 in tensor cores
LEAST_PASS = 1024  # tokens: scratch for fewer would stream the whole model for next to nothing
PAGEABLE = Rate(0.3, "estimated", "pageable copies reach 9.6 GB/s where pinned ones reach 32")
OVERHEAD = 0.01  # of a group's transfer, for its launches and events


@dataclass(frozen=True, slots=True)
class Usable:
    """GPUs of one plan, by their places in Machine.gpus; the one with the least room decides for all."""

    gpus: tuple[int, ...]
    names: tuple[str, ...]  # as the driver counts them, which skips none that has failed
    free_bytes: int

    @property
    def count(self) -> int:
        """How many."""
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Vram:
    """What lies on each GPU, in bytes, and what follows for prompts."""

    weights: int
    cache: Cache
    scratch: int
    ring_bytes: int
    ring: Ring
    pass_tokens: int  # of the longest prompt, for one pass over the experts
    num_passes: int
    spare: int = 0  # beside all of it

    @property
    def items(self) -> tuple[tuple[str, int], ...]:
        """Line items."""
        return (
            ("attention, dense and shared weights", self.weights),
            ("latent cache", self.cache.num_bytes),
            ("scratch", self.scratch),
            ("ring", self.ring_bytes),
            ("workspace", on_gpu.WORKSPACE_BYTES),
        )


def usable_gpus(asked: Asked) -> tuple[tuple[int, int], ...]:
    """(place in Machine.gpus, free bytes) of GPUs that can run localmoe's kernels, the roomiest first."""
    found = [(n, free_bytes(asked.machine, n)) for n in range(len(asked.machine.gpus)) if not why_not_usable(asked, n)]
    return tuple(sorted(found, key=lambda gpu: (-gpu[1], gpu[0])))


def why_not_usable(asked: Asked, n: int) -> str:
    """The reason against GPU `n`; empty without one."""
    gpu = asked.machine.gpus[n]
    if not asked.config.num_moe_layers:
        return "the model has no routed experts to stream"
    if n >= len(asked.rates.gpus):
        return f"how fast {gpu.name} is is unknown"
    if not free_bytes(asked.machine, n):
        return f"the room of {gpu.name} is unknown"
    capability = _capability(gpu.compute_capability)
    if capability is not None and capability < LEAST_CAPABILITY:
        return f"{gpu.name} has compute capability {gpu.compute_capability}, and BF16 needs 8.0"
    return ""


def why_no_gpu(asked: Asked) -> str:
    """Why not one GPU can be used."""
    machine = asked.machine
    if not machine.gpus:
        return machine.why_unknown("GPU") or "none found"
    return "; ".join(dict.fromkeys(why_not_usable(asked, n) for n in range(len(machine.gpus))))


def rates_for(rates: Rates, gpus: tuple[int, ...], free: tuple[int, ...], *, locked: bool) -> Rates:
    """Of the chosen GPUs with the room that they have; slower links where experts are not page-locked."""
    factor: Rate | float = 1.0 if locked else PAGEABLE
    chosen = tuple(
        replace(rates.gpus[n], vram_bytes=room, h2d=rates.gpus[n].h2d.times(factor))
        for n, room in zip(gpus, free, strict=True)
    )
    together = rates.h2d_together.times(factor) if rates.h2d_together else None
    return replace(rates, gpus=chosen, h2d_together=together)


def locks_experts(machine: Machine, num_bytes: int) -> tuple[bool, Decision]:
    """Whether `num_bytes` of experts can be page-locked, so that GPUs copy from them directly."""
    limits, size = machine.limits, gigabytes(num_bytes)
    if limits.locks_freely:
        return True, Decision("page-locking", size, "this process may lock memory: copies reach the bus's full speed")
    if limits.locked_bytes is None and (why := machine.why_unknown("memlock")):
        return True, Decision("page-locking", size, f"whether this process may lock so much is unknown: {why}")
    if limits.locked_bytes is None or limits.locked_bytes >= num_bytes:
        return True, Decision("page-locking", size, "the limit on locked memory allows it: copies reach full speed")
    most = limits.locked_most_bytes
    fix = "ulimit -l unlimited"
    if most is not None and most < num_bytes:
        fix = "'* - memlock unlimited' in /etc/security/limits.d (in a container: --ulimit memlock=-1)"
    return False, Decision(
        "page-locking",
        "not possible",
        f"this process may lock {gigabytes(limits.locked_bytes)} and the experts are {size}, so copies to the GPU"
        f" reach about a third of their speed; {fix} changes that",
    )


def fill_vram(
    asked: Asked,
    rates: Rates,
    usable: Usable,
    beside: Sequence[tuple[str, int]],
    longest_context: Callable[[], int],
) -> Vram:
    """What each GPU holds: weights, workspace and two slots first, then the cache, scratch, and a ring of the rest.

    `beside` are further items, of the first GPU; the others are filled like it.
    Raises OutOfMemoryError where not even a short context fits, or not the one that was asked for; it then names
    `longest_context()`.
    """
    config = asked.config
    weights = common_bytes(config, embedding=False)
    expert, cache = asked.expert_bytes, choices.fit_cache(asked, "bf16", None)
    least = Vram(
        weights=weights,
        cache=cache,
        scratch=scratch_bytes(config, LEAST_PASS, usable.count, cache.num_tokens),
        ring_bytes=on_gpu.LEAST_RING * expert,
        ring=Ring(on_gpu.LEAST_RING, 1),
        pass_tokens=LEAST_PASS,
        num_passes=1,
    )
    left = usable.free_bytes - sum(nbytes for name, nbytes in (*least.items, *beside) if name != "latent cache")
    cache = choices.fit_cache(asked, "bf16", left)
    if cache.num_bytes > left:
        cache = replace(cache, longest=longest_context())
        raise _refuse(asked, usable, replace(least, cache=cache), beside)
    left += least.scratch - cache.num_bytes
    most = most_tokens(config, left, usable.count, cache.num_tokens, max(LEAST_PASS, cache.context))
    passes = -(-cache.context // most)
    tokens = -(-cache.context // passes)
    scratch = scratch_bytes(config, tokens, usable.count, cache.num_tokens)
    ring = _ring(rates, config, usable.count, on_gpu.LEAST_RING + (left - scratch) // expert)
    spare = left - scratch - (ring.slots - on_gpu.LEAST_RING) * expert
    return Vram(weights, cache, scratch, ring.slots * expert, ring, tokens, passes, spare)


def _refuse(asked: Asked, usable: Usable, least: Vram, beside: Sequence[tuple[str, int]]) -> OutOfMemoryError:
    place = name_of(asked.machine, min(usable.gpus, key=lambda n: free_bytes(asked.machine, n)))
    items = [Item(place, name, nbytes) for name, nbytes in (*least.items, *beside)]
    return refuse_vram(asked, place, items, usable.free_bytes, least.cache)


def _ring(rates: Rates, config: ModelConfig, num_gpus: int, most_slots: int) -> Ring:
    """All that fits, up to the GPU's part of a layer; groups as small as their launches and events allow."""
    part = max(on_gpu.LEAST_RING, -(-config.num_experts // num_gpus))
    slots = min(most_slots, part)
    gpu = rates.gpus[0]
    overhead = GROUP_LAUNCHES * gpu.launch.value + GROUP_EVENTS * gpu.event.value
    expert_s = sizes_of(config).expert.num_bytes / link(rates, num_gpus).value
    return Ring(slots, max(1, min(slots // 2, math.ceil(overhead / (OVERHEAD * expert_s)))))


def name_of(machine: Machine, n: int) -> str:
    """GPU 1: with the driver's number, which may not be its place `n` in Machine.gpus."""
    return f"GPU {machine.gpus[n].index}"


def free_bytes(machine: Machine, n: int) -> int:
    """What GPU `n` has left; all of it where that is unknown, 0 where its size is."""
    gpu = machine.gpus[n]
    return gpu.total_bytes or 0 if gpu.free_bytes is None else gpu.free_bytes


def _capability(text: str | None) -> tuple[int, int] | None:
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None

"""What does not fit: every line item, and the smallest change that would make it fit."""

from collections.abc import Sequence

from localmoe.engine.plan import choices
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.choices import Cache
from localmoe.engine.plan.parts import Item
from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import PAGE_TOKENS

SMALLER = "choose a smaller model (localmoe doctor says which fit)"


def refuse_dram(asked: Asked, items: Sequence[Item], cache: Cache | None, disk_hint: str = "") -> OutOfMemoryError:
    """The error for a plan whose `items` are more than DRAM.

    `cache`: the one among them; None where it lies elsewhere. `disk_hint` tells what the plan from disk would do.
    """
    assert asked.dram_bytes is not None
    missing = sum(item.num_bytes for item in items) - asked.dram_bytes
    hints = [*(_cache_hints(asked, cache, missing) if cache else []), _more_memory(asked, missing), disk_hint, SMALLER]
    context = cache.context if cache else 0
    message = _message(asked.name, "of memory here", items, asked.dram_bytes, context)
    return OutOfMemoryError(message, _either(hints), missing)


def refuse_vram(asked: Asked, place: str, items: Sequence[Item], free: int, cache: Cache) -> OutOfMemoryError:
    """The error for a plan whose `items` are more than a GPU has."""
    hints = [_shorter(cache), "--plan cpu takes no GPU memory", SMALLER]
    return OutOfMemoryError(_message(asked.name, f"on {place}", items, free, cache.context), _either(hints))


def _message(name: str, where: str, items: Sequence[Item], available: int, context: int) -> str:
    needed = sum(item.num_bytes for item in items)
    listed = ", ".join(f"{_named(item, context)} {item.num_bytes / 1e9:,.1f}" for item in items)
    return f"{name} needs {needed / 1e9:,.1f} GB {where} and {available / 1e9:,.1f} GB are available ({listed})."


def _named(item: Item, context: int) -> str:
    return f"latent cache for {context:,} tokens" if item.name == "latent cache" else item.name


def _either(hints: Sequence[str]) -> str:
    return "; or ".join(hint for hint in hints if hint)


def _cache_hints(asked: Asked, cache: Cache, missing: int) -> list[str]:
    """A shorter context, exactly what fits, and BF16, where either is enough."""
    pages = -(-cache.context // PAGE_TOKENS)
    saved = pages * (cache.page_bytes - choices.page_bytes(asked.config, "bf16"))
    bf16 = f"LOCALMOE_CACHE_DTYPE=bf16 saves {gigabytes(saved)}, which is enough" if 0 < missing <= saved else ""
    return [_shorter(cache), bf16]


def _shorter(cache: Cache) -> str:
    return f"--context {cache.longest} fits" if PAGE_TOKENS <= cache.longest < cache.context else ""


def _more_memory(asked: Asked, missing: int) -> str:
    memory = asked.machine.memory
    in_use = (memory.total_bytes or 0) - (memory.available_bytes or 0)
    is_group = memory.cgroup_limit_bytes is not None and (memory.usable_bytes or 0) < (memory.available_bytes or 0)
    if is_group:
        return f"raise this container's memory limit by {gigabytes(missing)}"
    if missing <= in_use:
        return f"close other programs: {gigabytes(missing)} more would do"
    return f"{gigabytes(missing)} more memory would do"


def gigabytes(num_bytes: int) -> str:
    """For people; rounded up to MB where it is little."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 100_000_000 else f"{-(-num_bytes // 1_000_000):,} MB"

"""What does not fit: every line item, and the smallest change that would make it fit."""

from collections.abc import Sequence

from localmoe.engine.plan import choices
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.parts import Item
from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import PAGE_TOKENS

SMALLER = "choose a smaller model (localmoe doctor says which fit)"


def refuse_dram(
    asked: Asked,
    items: Sequence[Item],
    context: int,
    longest: int,
    cache_dtype: str,
    disk_hint: str = "",
) -> OutOfMemoryError:
    """The error for a plan whose `items` are more than DRAM; `disk_hint` tells what the plan from disk would do."""
    assert asked.dram_bytes is not None
    needed = sum(item.num_bytes for item in items)
    hints = [
        *_context_hints(asked, context, longest),
        *_cache_hints(asked, needed, context, cache_dtype),
        _more_memory(asked, needed - asked.dram_bytes),
        disk_hint,
        SMALLER,
    ]
    return OutOfMemoryError(
        message(asked.name, "of memory here", items, asked.dram_bytes, context, "available"),
        "; or ".join(hint for hint in hints if hint),
    )


def refuse_vram(
    asked: Asked, place: str, items: Sequence[Item], free: int, context: int, longest: int
) -> OutOfMemoryError:
    """The error for a plan whose `items` are more than a GPU has."""
    hints = [*_context_hints(asked, context, longest), "--plan cpu uses no GPU memory", SMALLER]
    return OutOfMemoryError(message(asked.name, f"on {place}", items, free, context, "free"), "; or ".join(hints))


def message(name: str, where: str, items: Sequence[Item], available: int, context: int, word: str) -> str:
    """The sentence with all of them."""
    needed = sum(item.num_bytes for item in items)
    listed = ", ".join(f"{_named(item, context)} {item.num_bytes / 1e9:,.1f}" for item in items)
    return f"{name} needs {needed / 1e9:,.1f} GB {where} and {available / 1e9:,.1f} GB are {word} ({listed})."


def _named(item: Item, context: int) -> str:
    return f"latent cache for {context:,} tokens" if item.name == "latent cache" else item.name


def _context_hints(asked: Asked, context: int, longest: int) -> list[str]:
    if PAGE_TOKENS <= longest < context:
        return [f"--context {longest} fits"]
    return []


def _cache_hints(asked: Asked, needed: int, context: int, cache_dtype: str) -> list[str]:
    if cache_dtype != "float32":
        return []
    pages = -(-context // PAGE_TOKENS)
    saved = pages * (choices.page_bytes(asked.config, "float32") - choices.page_bytes(asked.config, "bf16"))
    if needed - saved > (asked.dram_bytes or 0):
        return []
    return [f"LOCALMOE_CACHE_DTYPE=bf16 saves {saved / 1e9:,.1f} GB, which is enough"]


def _more_memory(asked: Asked, missing: int) -> str:
    memory = asked.machine.memory
    in_use = (memory.total_bytes or 0) - (memory.available_bytes or 0)
    is_group = memory.cgroup_limit_bytes is not None and (memory.usable_bytes or 0) < (memory.available_bytes or 0)
    if is_group:
        return f"raise this container's memory limit by {_amount(missing)}"
    if missing <= in_use:
        return f"close other programs: {_amount(missing)} more would do"
    return f"{_amount(missing)} more memory would do"


def _amount(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 100_000_000 else f"{-(-num_bytes // 1_000_000):,} MB"

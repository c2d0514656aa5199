"""What does not fit: every line item, and the smallest change that would make it fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from localmoe.engine.plan import choices
from localmoe.engine.plan.amounts import gigabytes
from localmoe.engine.plan.asked import Asked, fits_reserved
from localmoe.engine.plan.choices import Cache
from localmoe.engine.plan.parts import Item
from localmoe.engine.scratch import scratch_bytes
from localmoe.errors import OutOfMemoryError
from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES
from localmoe.hardware.machine import HugePool
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig

LEAST_POOL = 100_000_000  # bytes of unused pages that are worth a word
SMALLER = "choose a smaller model (localmoe doctor says which fit)"


@dataclass(frozen=True, slots=True)
class DiskHint:
    """What the plan from disk would do for whoever is refused: something to choose, or a word on why not."""

    choice: str = ""
    note: str = ""


NO_DISK_HINT = DiskHint()


def refuse_dram(
    asked: Asked, items: Sequence[Item], cache: Cache | None, chunk: int, disk: DiskHint = NO_DISK_HINT
) -> OutOfMemoryError:
    """The error for a plan whose `items` are more than DRAM.

    `cache`: the one among them; None where it lies elsewhere. `chunk`: tokens that the scratch among them is for.
    """
    assert asked.dram_bytes is not None
    missing = sum(item.num_bytes for item in items) - asked.dram_bytes
    smaller = [*(_cache_hints(asked, cache, missing) if cache else []), _chunk_hint(asked, chunk, missing)]
    hint = _either([*smaller, _convert_hint(asked.config, missing), _more_memory(asked, missing), disk.choice, SMALLER])
    context = cache.context if cache else 0
    message = _message(asked.name, "of memory here", items, asked.dram_bytes, context)
    return OutOfMemoryError(message, f"{hint}; {disk.note}" if disk.note else hint, missing)


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


def _chunk_hint(asked: Asked, chunk: int, missing: int) -> str:
    """The first of half the chunk, a quarter, ... whose scratch fits, where the user chose the chunk."""
    threads, _ = choices.choose_threads(asked)
    if asked.settings.origin("prefill_chunk") == "default":
        return ""
    most = scratch_bytes(asked.config, chunk, threads, asked.isa) - missing
    shorter = (chunk >> n for n in range(1, chunk.bit_length()))
    fitting = next((n for n in shorter if scratch_bytes(asked.config, n, threads, asked.isa) <= most), None)
    return f"LOCALMOE_PREFILL_CHUNK={fitting} fits" if fitting else ""


def _convert_hint(config: ModelConfig, missing: int) -> str:
    """FP8, where that is enough: of a BF16 model all but embeddings and head takes half."""
    saved = config.num_params() - config.vocab * config.hidden * (1 if config.tie_embeddings else 2)
    if config.weight_format != "bf16" or missing > saved:
        return ""
    return f"localmoe quantize makes FP8 of it, which saves {gigabytes(saved)} and fits"


def _more_memory(asked: Asked, missing: int) -> str:
    memory = asked.machine.memory
    if memory.cgroup_limit_bytes is not None and (memory.usable_bytes or 0) < (memory.available_bytes or 0):
        return f"raise this container's memory limit by {gigabytes(missing)}"
    unused = sum(pool.free_bytes for pool in _unused_pools(asked))
    rest = missing - unused
    if rest <= 0:
        return unused_pages(asked)
    set_aside = sum(pool.num_pages * pool.page_bytes for pool in memory.huge_pools)
    in_use = (memory.total_bytes or 0) - (memory.available_bytes or 0) - set_aside
    more = f"{gigabytes(rest)} more memory would do"
    if rest <= in_use:
        more = f"close other programs: {gigabytes(rest)} more would do"
    return "; and ".join(filter(None, (unused_pages(asked), more)))


def unused_pages(asked: Asked) -> str:
    """How to free memory that is set aside in pages which the weights cannot lie on; empty where none is."""
    return " and ".join(
        f"free {gigabytes(pool.free_bytes)} in unused huge pages of {_page(pool)}: echo 0 | sudo tee {pool.file}"
        for pool in _unused_pools(asked)
    )


def _unused_pools(asked: Asked) -> list[HugePool]:
    in_use = HUGE_PAGE_BYTES if fits_reserved(asked.machine, asked.weights.total) else None
    pools = asked.machine.memory.huge_pools
    return [pool for pool in pools if pool.free_bytes >= LEAST_POOL and pool.page_bytes != in_use]


def _page(pool: HugePool) -> str:
    return f"{pool.page_bytes >> 30} GB" if pool.page_bytes >= 1 << 30 else f"{pool.page_bytes >> 20} MB"

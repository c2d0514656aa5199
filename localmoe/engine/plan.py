"""What the engine decides from settings, model and machine, with its reasons. Pure: values in, values out."""

from collections.abc import Mapping
from dataclasses import dataclass

from localmoe.engine.scheduler import MAX_BATCH
from localmoe.engine.scratch import scratch_bytes
from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig
from localmoe.settings import Settings

DEFAULT_CONTEXT = 8192  # tokens, unless the user or the model says otherwise
LEAST_CONTEXT = 1024  # what is still worth starting for, if nobody asked for more
MAX_SESSIONS = 4  # whole contexts in the cache, while they take less than CACHE_SHARE of what is left
CACHE_SHARE = 1 / 8
RESERVE_BYTES = 256 << 20  # for Python, buffers and the page cache; 1 % of large weights
ELEMENT_BYTES = {"float32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Resources:
    """What the machine offers."""

    isa: str
    num_cores: int
    available_bytes: int  # 0: unknown


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions. `memory` has the bytes of each line item."""

    isa: str
    num_threads: int
    cache_dtype: str
    chunk: int
    context_limit: int
    num_pages: int
    memory: Mapping[str, int]
    reasons: tuple[str, ...]


def make_plan(name: str, config: ModelConfig, settings: Settings, weight_bytes: int, resources: Resources) -> Plan:
    """The plan for `config` on this machine; OutOfMemoryError with every line item when it does not fit."""
    threads, why_threads = _choose_threads(settings, resources.num_cores)
    fixed = {
        "weights": weight_bytes,
        "scratch": sum(scratch_bytes(config, count, threads) for count in (settings.prefill_chunk, MAX_BATCH)),
        "reserve": max(RESERVE_BYTES, weight_bytes // 100),
    }
    page_bytes = config.num_layers * PAGE_TOKENS * config.latent_width * ELEMENT_BYTES[settings.cache_dtype]
    left = resources.available_bytes - sum(fixed.values()) if resources.available_bytes else None
    context, why_context = _choose_context(config, settings, None if left is None else left // page_bytes)
    num_pages = _choose_pages(context, page_bytes, left)
    memory = {"weights": weight_bytes, f"cache for {context:,} tokens": num_pages * page_bytes, **fixed}
    if resources.available_bytes:
        _require(name, memory, resources.available_bytes, settings, context * page_bytes // PAGE_TOKENS)
    reasons = (
        f"all weights lie in DRAM as in the checkpoint ({weight_bytes / 1e9:,.2f} GB) and are used in place",
        f"{resources.isa} kernels: "
        + ("as asked for" if settings.isa else "the best that CPU and operating system allow"),
        why_threads,
        why_context,
        f"the latent cache is {settings.cache_dtype}, {num_pages * PAGE_TOKENS:,} tokens in {num_pages} pages"
        f" ({num_pages * page_bytes / 1e6:,.0f} MB)",
        f"prompts are read in chunks of {settings.prefill_chunk} tokens; up to {MAX_BATCH} answers are made together",
    )
    return Plan(
        resources.isa, threads, settings.cache_dtype, settings.prefill_chunk, context, num_pages, memory, reasons
    )


def _choose_context(config: ModelConfig, settings: Settings, most_pages: int | None) -> tuple[int, str]:
    wanted, most = settings.context or DEFAULT_CONTEXT, config.max_position
    if wanted > most:
        asked = f" ({wanted:,} were asked for)" if settings.context else ""
        return _within_memory(most, f"all that the model was made for{asked}", settings, most_pages)
    why = f"chosen by {settings.origin('context')}" if settings.context else "the default; --context changes it"
    return _within_memory(wanted, why, settings, most_pages)


def _within_memory(context: int, why: str, settings: Settings, most_pages: int | None) -> tuple[int, str]:
    """A context that nobody asked for gives way to what memory holds."""
    fits = context if most_pages is None else most_pages * PAGE_TOKENS
    if settings.context is None and min(context, LEAST_CONTEXT) <= fits < context:
        return fits, f"context of {fits:,} tokens: no more fits into memory"
    return context, f"context of {context:,} tokens: {why}"


def _choose_pages(context: int, page_bytes: int, left: int | None) -> int:
    one = -(-context // PAGE_TOKENS)
    if left is None:
        return one
    return max(one, min(MAX_SESSIONS * one, int(left * CACHE_SHARE) // page_bytes))


def _choose_threads(settings: Settings, num_cores: int) -> tuple[int, str]:
    if settings.threads:
        return settings.threads, f"{settings.threads} threads: chosen by {settings.origin('threads')}"
    if num_cores > 2:
        return num_cores - 1, f"{num_cores - 1} threads: one per physical core, one core left for the screen"
    return num_cores, f"{num_cores} thread{'s' * (num_cores > 1)}: one per physical core"


def _require(name: str, memory: Mapping[str, int], available: int, settings: Settings, context_bytes: int) -> None:
    needed = sum(memory.values())
    if needed <= available:
        return
    items = ", ".join(f"{item} {nbytes / 1e9:,.1f}" for item, nbytes in memory.items())
    raise OutOfMemoryError(
        f"{name} needs {needed / 1e9:,.1f} GB of memory here and {available / 1e9:,.1f} GB are available ({items}).",
        _hint(settings, needed - available, context_bytes),
    )


def _hint(settings: Settings, missing: int, context_bytes: int) -> str:
    """What would help, and whether it is enough."""
    if settings.context and settings.context > LEAST_CONTEXT:
        saved = context_bytes - context_bytes * LEAST_CONTEXT // settings.context
        enough = "which is enough" if saved >= missing else "not enough"
        return f"--context {LEAST_CONTEXT} saves {saved / 1e9:,.1f} GB, {enough}; or choose a smaller model"
    return "close other programs, raise this container's memory limit, or choose a smaller model (localmoe models)"

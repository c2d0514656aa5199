"""What every kind of plan chooses alike: kernels, threads, context, pages."""

from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.parts import Decision, SharedCopy
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig
from localmoe.settings import Settings

DEFAULT_CONTEXT = 8192  # tokens, unless the user or the model says otherwise
LEAST_CONTEXT = 1024  # what is still worth starting for, if nobody asked for more
MAX_SESSIONS = 4  # whole contexts in the cache, while they take less than CACHE_SHARE of what is left
CACHE_SHARE = 1 / 8
RESERVE_BYTES = 256 << 20  # for Python, buffers and the page cache; 1 % of large weights
ELEMENT_BYTES = {"float32": 4, "bf16": 2}
URGENT_SHARE = 0.5  # decode and prefill take turns of the same length, as `scheduler` lets them


def page_bytes(config: ModelConfig, cache_dtype: str) -> int:
    """One page of the latent cache, all layers."""
    return config.num_layers * PAGE_TOKENS * config.latent_width * ELEMENT_BYTES[cache_dtype]


def reserve(weight_bytes: int) -> int:
    """What is kept free beside resident weights."""
    return max(RESERVE_BYTES, weight_bytes // 100)


def wanted_context(config: ModelConfig, settings: Settings, default: int = DEFAULT_CONTEXT) -> tuple[int, str]:
    """Tokens, before memory has its say, and why."""
    wanted, most = settings.context or default, config.max_position
    if wanted > most:
        asked = f" ({wanted:,} were asked for)" if settings.context else ""
        return most, f"all that the model was made for{asked}"
    why = f"chosen by {settings.origin('context')}" if settings.context else "the default, which --context changes"
    return wanted, why


def fitting_context(wanted: tuple[int, str], settings: Settings, longest: int) -> tuple[int, str]:
    """A context that nobody asked for gives way to what memory holds, as long as it is worth starting for."""
    context, why = wanted
    if settings.context is None and min(context, LEAST_CONTEXT) <= longest < context:
        return longest, "no more fits into memory"
    return context, why


def longest_context(config: ModelConfig, left: int | None, one_page_bytes: int) -> int:
    """Tokens whose pages fit into `left` bytes (None: unknown), within what the model takes."""
    if left is None:
        return config.max_position
    return min(config.max_position, max(0, left // one_page_bytes * PAGE_TOKENS))


def choose_pages(context: int, one_page_bytes: int, left: int | None) -> int:
    """Pages for one whole context, or for several where they take little of what is left."""
    one = -(-context // PAGE_TOKENS)
    if left is None:
        return one
    return max(one, min(MAX_SESSIONS * one, int(left * CACHE_SHARE) // one_page_bytes))


def choose_threads(asked: Asked, num_gpus: int = 0) -> tuple[int, Decision]:
    """One worker per physical core, some left for the screen and for feeding GPUs."""
    settings, cores = asked.settings, asked.machine.limits.usable_cores
    if settings.threads:
        return settings.threads, Decision("threads", f"{settings.threads}", f"chosen by {settings.origin('threads')}")
    if cores <= 2 + num_gpus:
        return cores, Decision("threads", f"{cores}", "one per physical core")
    feeding = f", {num_gpus} for feeding GPUs" if num_gpus else ""
    threads = cores - 1 - num_gpus
    return threads, Decision("threads", f"{threads}", f"one per physical core, one core left for the screen{feeding}")


def isa_decision(asked: Asked) -> Decision:
    """Which kernels."""
    why = "as asked for" if asked.settings.isa else "the best that CPU and operating system allow"
    return Decision("kernels", asked.isa, why)


def cache_decision(config: ModelConfig, cache_dtype: str, num_pages: int, place: str) -> Decision:
    """Of what size the latent cache is."""
    nbytes = num_pages * page_bytes(config, cache_dtype)
    tokens = num_pages * PAGE_TOKENS
    why = f"{tokens:,} tokens in {num_pages:,} pages ({nbytes / 1e6:,.0f} MB), which all conversations share"
    return Decision("latent cache", f"{cache_dtype} in {place}", why)


def sharing_decisions(asked: Asked) -> tuple[Decision, ...]:
    """How the two phases share cores and weights."""
    shared = shared_copy(asked)
    return (
        Decision(
            "decode's share",
            f"{URGENT_SHARE:.0%}",
            f"while a prompt is read too, both take turns; up to {MAX_BATCH} answers are made together",
        ),
        Decision(
            "experts' copies",
            "1",
            f"prefill and decode read the same bytes; routed experts are {shared.routed_share:.0%} of the model, so a"
            f" copy for each phase would take {shared.saved_bytes / 1e9:,.1f} GB more",
        ),
    )


def shared_copy(asked: Asked) -> SharedCopy:
    """One copy of the experts against one for each phase."""
    weights = asked.weights
    return SharedCopy(weights.routed, weights.total, weights.routed)

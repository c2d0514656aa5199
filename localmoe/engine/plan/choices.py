"""What every kind of plan chooses alike: kernels, threads, context and pages, shares."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localmoe.engine.cost.placement import Placement
from localmoe.engine.plan.amounts import gigabytes
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.parts import Decision, SharedCopy
from localmoe.engine.scheduler import MAX_BATCH, PASSING_TOKENS
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig
from localmoe.settings import Settings

if TYPE_CHECKING:
    from localmoe.engine.cost.serving import Serving

DEFAULT_CONTEXT = 8192  # tokens, unless the user or the model says otherwise
LEAST_CONTEXT = 1024  # what is still worth starting for, if nobody asked for more
MAX_SESSIONS = 4  # whole contexts in the cache, while they take less than CACHE_SHARE of what is left
CACHE_SHARE = 1 / 8
RESERVE_BYTES = 256 << 20  # for Python, buffers and the page cache; 1 % of large weights
ELEMENT_BYTES = {"float32": 4, "bf16": 2}
EQUAL_SHARE = 0.5  # where decode and prefill take turns, those are of the same length, as `scheduler` lets them
MOST_SHARE = 0.75  # of the workers' time for decode where both run at once: prompts are always read on


@dataclass(frozen=True, slots=True)
class Cache:
    """The latent cache: how long a conversation may be, why, and the pages for it."""

    dtype: str
    context: int
    why: str
    longest: int  # context that would fit
    num_pages: int
    page_bytes: int  # of all layers

    @property
    def num_tokens(self) -> int:
        """That all pages hold."""
        return self.num_pages * PAGE_TOKENS

    @property
    def num_bytes(self) -> int:
        """Of all pages."""
        return self.num_pages * self.page_bytes

    def decisions(self, place: str) -> tuple[Decision, Decision]:
        """The context, and the cache that holds it."""
        size = f"{self.num_pages * PAGE_TOKENS:,} tokens in {self.num_pages:,} pages ({self.num_bytes / 1e6:,.0f} MB)"
        return (
            Decision("context", f"{self.context:,} tokens", self.why),
            Decision("latent cache", f"{self.dtype} in {place}", f"{size}, which all conversations share"),
        )


def fit_cache(asked: Asked, dtype: str, left: int | None, default: int = DEFAULT_CONTEXT, sessions: int = 1) -> Cache:
    """The cache in `left` bytes (None: unknown), for up to so many whole contexts where they take little of it.

    A context that nobody asked for gives way to what memory holds, as long as it is worth starting for. One that was
    asked for does not: then the cache may take more than is left.
    """
    config, settings = asked.config, asked.settings
    one_page = page_bytes(config, dtype)
    longest = longest_context(config, left, one_page)
    context, why = wanted_context(config, settings, default)
    if settings.context is None and min(context, LEAST_CONTEXT) <= longest < context:
        context, why = longest, "no more fits into memory"
    pages = -(-context // PAGE_TOKENS)
    if left is not None:
        pages = max(pages, min(sessions * pages, int(left * CACHE_SHARE) // one_page))
    return Cache(dtype, context, why, longest, pages, one_page)


def page_bytes(config: ModelConfig, cache_dtype: str) -> int:
    """One page of the latent cache, all layers."""
    return config.num_layers * PAGE_TOKENS * config.latent_width * ELEMENT_BYTES[cache_dtype]


def longest_context(config: ModelConfig, left: int | None, one_page_bytes: int) -> int:
    """Tokens whose pages fit into `left` bytes (None: unknown), within what the model takes."""
    if left is None:
        return config.max_position
    return min(config.max_position, max(0, left // one_page_bytes * PAGE_TOKENS))


def wanted_context(config: ModelConfig, settings: Settings, default: int = DEFAULT_CONTEXT) -> tuple[int, str]:
    """Tokens, before memory has its say, and why."""
    wanted, most = settings.context or default, config.max_position
    if wanted > most:
        asked = f" ({wanted:,} were asked for)" if settings.context else ""
        return most, f"all that the model was made for{asked}"
    if settings.context:
        return wanted, f"chosen by {settings.said_by('context')}"
    return wanted, "the default, which --context changes"


def reserve(weight_bytes: int) -> int:
    """What is kept free beside resident weights."""
    return max(RESERVE_BYTES, weight_bytes // 100)


def choose_threads(asked: Asked, num_gpus: int = 0) -> tuple[int, Decision]:
    """One worker per physical core, some left for the screen and for feeding GPUs."""
    settings, cores = asked.settings, asked.machine.limits.usable_cores
    if settings.threads:
        return settings.threads, Decision("threads", f"{settings.threads}", f"chosen by {settings.said_by('threads')}")
    if cores <= 2 + num_gpus:
        return cores, Decision("threads", f"{cores}", "one per physical core")
    feeding = f", {num_gpus} for feeding GPUs" if num_gpus else ""
    threads = cores - 1 - num_gpus
    return threads, Decision("threads", f"{threads}", f"one per physical core, one core left for the screen{feeding}")


def isa_decision(asked: Asked) -> Decision:
    """Which kernels."""
    why = "as asked for" if asked.settings.isa else "the best that CPU and operating system allow"
    return Decision("kernels", asked.isa, why)


def chunk_decision(asked: Asked, chunk: int, why: str) -> Decision:
    """How prompts are cut where the CPU reads them."""
    settings = asked.settings
    chosen = "" if settings.origin("prefill_chunk") == "default" else f"chosen by {settings.said_by('prefill_chunk')}"
    return Decision("prefill chunks", f"{chunk:,} tokens", chosen or why)


def choose_serving(asked: Asked, placement: Placement) -> "Serving":
    """Share, batch and chunk beside others, for the largest goodput within the settings' targets."""
    from localmoe.engine.cost.serving import Aims, serve  # with the model of cost

    settings = asked.settings
    aims = Aims(settings.ttft_target_s, 1e-3 * settings.tpot_target_ms, MOST_SHARE, MAX_BATCH)
    return serve(asked.give_rates(), asked.config, placement, aims)


def sharing_decisions(asked: Asked, *shares: Decision) -> tuple[Decision, ...]:
    """How the two phases share cores, as `shares` says, and weights."""
    shared = shared_copy(asked)
    return (
        *shares,
        Decision(
            "copies of experts",
            "one",
            f"prefill and decode read the same bytes; routed experts are {shared.routed_share:.0%} of the model, and a"
            f" copy for each phase would take {gigabytes(shared.saved_bytes)} more",
        ),
    )


def together_decisions(settings: Settings, serving: "Serving") -> tuple[Decision, Decision]:
    """For phases that run at the same time on the CPU."""
    target = f"{settings.tpot_target_ms:g} ms for each token"
    if serving.is_reached:
        share = f"a step of {answers(serving.batch)} takes {1e3 * serving.step_s:.0f} ms alone, the target is {target}"
        why = f"about {serving.requests_s:.2g} requests a second keep to {target} and {settings.ttft_target_s:g} s to"
        why += " the first; more answers, or longer chunks, would not"
    else:
        share = f"a step of {answers(serving.batch)} takes {1e3 * serving.step_s:.0f} ms alone, more than"
        share += f" {target}: decode goes first, but for what keeps prompts going"
        why = "the target is out of reach: so many share a step that takes no more than twice the time of one"
    return (
        Decision(
            "decode's share", f"up to {MOST_SHARE:.0%}", f"while a prompt is read too, as the target asks; {share}"
        ),
        Decision(
            "side by side",
            f"{answers(serving.batch)}, and chunks of {serving.chunk:,} tokens while others wait or decode; prompts of"
            f" up to {PASSING_TOKENS} tokens pass longer ones at once",
            why,
        ),
    )


def answers(count: int) -> str:
    """One answer, so many answers."""
    return "one answer" if count == 1 else f"{count} answers"


def turns_decision() -> Decision:
    """For phases that take turns."""
    why = f"while a prompt is read too, both take turns; up to {MAX_BATCH} answers are made together"
    return Decision("decode's share", f"{EQUAL_SHARE:.0%}", why)


def beside_gpus_decision(name: str) -> Decision:
    """For phases that run at the same time on the CPU and GPU `name`."""
    why = f"while a prompt is read too, as the target asks; on {name} steps go first. A streamed prompt takes no worker"
    why += f" of the CPU, and up to {MAX_BATCH} answers are made together"
    return Decision("decode's share", f"up to {MOST_SHARE:.0%} of the CPU's workers", why)


def shared_copy(asked: Asked) -> SharedCopy:
    """One copy of the experts against one for each phase."""
    weights = asked.weights
    return SharedCopy(weights.routed, weights.total, weights.routed)

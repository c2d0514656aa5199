"""What a request must satisfy before it is queued. Every engine asks the same questions."""

import math

from localmoe.engine.request import Request, Sampling
from localmoe.errors import CheckpointError, UsageError
from localmoe.settings import MAX_TPOT_TARGET_MS, MAX_TTFT_TARGET_S


def check_request(request: Request) -> None:
    """UsageError when `request` cannot be answered as asked, whatever the model."""
    messages = request.conversation.messages
    if not messages or messages[-1].role != "user":
        raise UsageError("the conversation has no question: its last message must be the user's", "add a user message")
    if not messages[-1].text.strip():
        raise UsageError("the prompt is empty", "type a question")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise UsageError(f"max tokens must be 1 or more, not {request.max_tokens}", "leave it out for no limit")
    if request.ttft_target_s is not None:
        _within("target for the first token (s)", request.ttft_target_s, 0.0, MAX_TTFT_TARGET_S, open_low=True)
    if request.tpot_target_ms is not None:
        _within("target for each token (ms)", request.tpot_target_ms, 0.0, MAX_TPOT_TARGET_MS, open_low=True)
    check_sampling(request.sampling)


def check_sampling(sampling: Sampling) -> None:
    """UsageError that names the first value out of its range."""
    _within("temperature", sampling.temperature, 0.0, 100.0)
    _within("top-p", sampling.top_p, 0.0, 1.0, open_low=True)
    _within("min-p", sampling.min_p, 0.0, 1.0)
    _within("repetition penalty", sampling.repetition_penalty, 0.01, 100.0)
    if sampling.seed is not None and sampling.seed < 0:
        raise UsageError(f"the seed must be 0 or more, not {sampling.seed}", "leave it out for a new answer each time")


def check_fits(num_tokens: int, context_limit: int) -> None:
    """UsageError when a prompt of `num_tokens` is longer than the context."""
    if num_tokens > context_limit:
        raise UsageError(
            f"the conversation has {num_tokens:,} tokens; the context holds {context_limit:,}",
            "start a new chat, shorten the prompt, or open the model with a larger --context",
        )


def check_vocabulary(token: int, vocab: int) -> None:
    """CheckpointError when the tokenizer's `token` is none of the model's `vocab`."""
    if token >= vocab:
        raise CheckpointError(
            f"the tokenizer has token {token:,}, the model only {vocab:,}: they do not belong together",
            "take the tokenizer from the model's own repository",
        )


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if math.isfinite(value) and (low < value if open_low else low <= value) and value <= high:
        return
    bound = f"above {low:g} and at most {high:g}" if open_low else f"from {low:g} to {high:g}"
    raise UsageError(f"{name} must be {bound}, not {value:g}", f"choose a {name} {bound}")

"""What the engine tells whoever listens: frozen dataclasses with a JSON codec.

Knows nothing of models, engines or screens.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from localmoe.errors import LocalmoeError, UsageError

Channel = Literal["thought", "answer"]
FinishReason = Literal["stop", "length", "cancelled", "context"]


@dataclass(frozen=True, slots=True)
class Event:
    """Anything that the engine reports."""


@dataclass(frozen=True, slots=True)
class Loading(Event):
    """Weights on their way into memory, while an engine opens."""

    stage: str  # "checking", "reading", "self-test", ...
    done_bytes: int
    total_bytes: int
    rate_bytes_s: float = 0.0
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The request waits; position 0 is the next one to be read."""

    position: int


@dataclass(frozen=True, slots=True)
class PrefillProgress(Event):
    """Prompt tokens read so far, those found in the cache included."""

    done_tokens: int
    total_tokens: int
    cached_tokens: int
    tok_s: float = 0.0
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class TextDelta(Event):
    """New text of the thought or of the answer."""

    text: str
    channel: Channel = "answer"


@dataclass(frozen=True, slots=True)
class Stats(Event):
    """How the request is doing, about four times a second and once at its end."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    thought_tokens: int
    context_tokens: int  # in the session's latent cache
    context_limit: int
    ttft_s: float | None = None
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    thought_s: float | None = None
    num_active: int = 1  # sessions in the decode batch
    num_queued: int = 0


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The last event of a request that was answered, in full or in part."""

    reason: FinishReason
    text: str
    reasoning: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float | None
    prefill_tok_s: float | None
    decode_tok_s: float | None
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The last event of a request that could not be answered."""

    message: str
    hint: str = ""
    exit_code: int = 1

    @classmethod
    def of(cls, error: LocalmoeError) -> "Failed":
        """The event that reports `error`."""
        return cls(error.message, error.hint, error.exit_code)


_KINDS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Loading, Queued, PrefillProgress, TextDelta, Stats, Finished, Failed)
}


def encode(event: Event) -> dict[str, Any]:
    """`event` as a JSON-ready dict with its kind under "event"."""
    return {"event": type(event).__name__, **asdict(event)}


def decode(data: dict[str, Any]) -> Event:
    """The event that `encode` made `data` of; UsageError when it is none."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        raise UsageError(f"unknown event {data.get('event')!r}", "known: " + ", ".join(_KINDS))
    names = {f.name for f in fields(kind)}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
    try:
        event: Event = kind(**values)
    except TypeError as error:
        raise UsageError(f"incomplete event {kind.__name__}: {error}") from error
    return event

"""What the engine tells whoever listens: frozen dataclasses with a JSON codec.

Knows nothing of models, engines or screens.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from localmoe.errors import LocalmoeError, UsageError

Channel = Literal["thought", "answer"]
FinishReason = Literal["stop", "length", "cancelled", "context"]
LaneStage = Literal["load", "compute", "exchange", "unload"]


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
    """The request waits; position 0 is the next one to be read. The estimate is of when that begins."""

    position: int
    eta_s: float | None = None  # None: no prompt was read yet, so its speed is not known


@dataclass(frozen=True, slots=True)
class PrefillProgress(Event):
    """Prompt tokens read so far, those found in the cache included."""

    done_tokens: int
    total_tokens: int
    cached_tokens: int
    tok_s: float = 0.0
    eta_s: float | None = None
    parts_tok_s: tuple[float, ...] = ()  # of the parts between this and the events before, the last of them


@dataclass(frozen=True, slots=True)
class TextDelta(Event):
    """New text of the thought or of the answer."""

    text: str
    channel: Channel = "answer"


@dataclass(frozen=True, slots=True)
class Workers:
    """The worker pool: how many workers were at work, of each class, on average since the figures before.

    A wait is an urgent tile's for the bulk work of the worker that then took it; counted since the engine was opened.
    """

    num_workers: int
    urgent: float  # decode
    bulk: float  # prefill
    num_waits: int = 0
    wait_p50_us: float = 0.0
    wait_p99_us: float = 0.0
    wait_max_us: float = 0.0
    share: float = 1.0  # of the workers' time that is decode's while a prompt is read too


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
    decode_now_tok_s: float | None = None  # since the figures before
    cache_used_bytes: int = 0  # of all sessions' pages
    workers: Workers | None = None


class LaneSpan(NamedTuple):
    """Work from `start_s` to `end_s`, in seconds before the event: 0 is now.

    Spans too short to be drawn are told as one, of the layer and group of the last: they were busy for `busy_s` of it.
    """

    layer: int  # of those with routed experts, from 0; -1: the whole network
    group: int  # of the pass over the experts; -1: none
    start_s: float
    end_s: float
    busy_s: float
    num_bytes: int  # moved; 0 where nothing was


@dataclass(frozen=True, slots=True)
class Lane:
    """What a device did of one kind within the window: loads, computes, exchanges rows with others, unloads."""

    device: str
    stage: LaneStage
    busy_s: float  # at least one was under way
    num_bytes: int
    spans: tuple[LaneSpan, ...]

    @property
    def rate_bytes_s(self) -> float | None:
        """Bytes over the time in which any were moved; None where none were."""
        return self.num_bytes / self.busy_s if self.num_bytes and self.busy_s else None


@dataclass(frozen=True, slots=True)
class Lanes(Event):
    """What every device did during the last `window_s` seconds: about four times a second, each time anew.

    `overlap` is the efficiency of loading beside computing: with each device's load_s and compute_s, the time in which
    it loads and the time in which it computes, and wall_s, the time from the first of both to the last without the
    pauses between requests, it is sum(max(load_s, compute_s)) / sum(wall_s) over the devices that do both. 1: the
    shorter one is hidden entirely.
    """

    clock_s: float  # time.perf_counter() now
    window_s: float
    lanes: tuple[Lane, ...]
    overlap: float | None = None
    layer: int | None = None  # of all layers, from 1: the last one that was computed; None: not told
    num_layers: int = 0


@dataclass(frozen=True, slots=True)
class Heat(Event):
    """How often experts were chosen by the last `num_steps` decode steps, for each layer that has any.

    `layers[n]` has equal runs of neighbouring experts, in their order: each expert alone where they are few.
    """

    first_layer: int  # of all layers, from 1: that of layers[0]
    num_experts: int
    num_steps: int
    layers: tuple[tuple[int, ...], ...]


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


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The engine in another process is gone; it concerns no request, and comes also while none is answered."""

    message: str
    hint: str = ""


_LATEST_ONLY = (Loading, Queued, PrefillProgress, Lanes, Heat)


def merge(events: list[Event], event: Event) -> None:
    """Adds `event` to those of a request that wait: text joins the text before it, progress replaces its elder."""
    last = events[-1] if events else None
    if isinstance(event, TextDelta) and isinstance(last, TextDelta) and last.channel == event.channel:
        events[-1] = replace(last, text=last.text + event.text)
    elif isinstance(event, _LATEST_ONLY):
        events[:] = [old for old in events if type(old) is not type(event)]
        events.append(event)
    else:
        events.append(event)


_KINDS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Loading, Queued, PrefillProgress, TextDelta, Stats, Lanes, Heat, Finished, Failed)
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
    try:
        event: Event = kind(**{name: _value(name, value) for name, value in data.items() if name in names})
    except (TypeError, KeyError) as error:
        raise UsageError(f"incomplete event {kind.__name__}: {error}") from error
    return event


def _value(name: str, value: Any) -> Any:
    """What JSON made a dict or a list of, as it was."""
    if name == "workers" and value is not None:
        return Workers(**value)
    if name == "lanes":
        return tuple(Lane(**{**lane, "spans": tuple(LaneSpan(*span) for span in lane["spans"])}) for lane in value)
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value

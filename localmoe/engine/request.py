"""What a frontend asks for, and the face that every engine shows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from localmoe.chat.message import Conversation
from localmoe.events import Event


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy."""

    temperature: float = 0.6
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # 1 is off
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The whole conversation, ending in a user message, and how to answer it."""

    conversation: Conversation
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None  # None: until the context is full
    think: bool | None = None  # None: the template's default
    session: str = "default"  # requests with the same session reuse its latent cache
    ttft_target_s: float | None = None  # to the first token; None: the settings'
    tpot_target_ms: float | None = None  # for each token after it; None: the settings'


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What runs, in words and numbers, for titles, panels and `--json`."""

    model: str
    description: str  # "a tiny demonstration model (12 M)", "671 B, 37 B active, FP8"
    is_demo: bool
    isa: str
    num_threads: int
    context_limit: int
    weight_bytes: int
    cache_bytes: int
    load_s: float
    plan: tuple[str, ...]  # one sentence per decision
    sampling: Sampling  # the model's own defaults
    attention_flops: int = 0  # that each token of context adds to a decode step; 0: nothing is computed
    details: Mapping[str, Any] = field(default_factory=dict)  # the plan as plain values, for `--json`


class Handle(Protocol):
    """One submitted request."""

    def events(self) -> Iterator[Event]:
        """Blocks for each next event; ends after Finished or Failed."""
        ...

    def cancel(self) -> None:
        """Asks the engine to stop; the partial answer comes with Finished("cancelled")."""
        ...


class EngineFace(Protocol):
    """What the engine, its scripted fake and a remote one have in common."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, request: Request) -> Handle:
        """Checks `request` (UsageError) and returns at once; the answer comes as events."""
        ...

    def count_tokens(self, conversation: Conversation) -> int:
        """Prompt tokens of `conversation`, its generation prompt included."""
        ...

    def close(self) -> None:
        """Cancels what runs, frees everything; safe to call twice."""
        ...

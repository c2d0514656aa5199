"""What history keeps, as frozen values: chats, turns, and what a search finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Literal

from localmoe.chat.message import Conversation, Message

# How an answer ended. Beside the engine's reasons: it failed; its program was killed; it is still being written.
Ending = Literal["stop", "length", "cancelled", "context", "failed", "killed", "writing"]
ENDINGS: tuple[Ending, ...] = ("stop", "length", "cancelled", "context", "failed", "killed", "writing")

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no letters and digits that look alike
_ID_LETTERS = 6
_TITLE_LETTERS = 60


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation's name and what belongs to all of it. Times are in ms since 1970, UTC."""

    id: str
    title: str = ""
    model: str = ""  # that was asked last: a catalogue name or a folder
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # settings that were chosen for it, by name
    created_ms: int = 0
    updated_ms: int = 0
    deleted_ms: int | None = None
    num_turns: int = 0  # in all branches


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, or an answer and how it ended."""

    role: Literal["user", "assistant"]
    text: str
    reasoning: str = ""
    model: str = ""  # that answered
    ending: Ending = "stop"
    figures: Mapping[str, Any] = field(default_factory=dict)  # thought_tokens, thought_s, completion_tokens, ...
    created_ms: int = 0
    id: int = 0
    parent: int | None = None  # the turn before it

    @property
    def unread_turns(self) -> int:
        """How many turns from the first on the model did not read for this answer: they did not fit."""
        count = self.figures.get("unread_turns", 0)
        return count if type(count) is int and count > 0 else 0  # an imported file can hold anything


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a search found its words. `turn` is None when it was the title."""

    chat: Chat
    turn: int | None
    before: str
    match: str
    after: str


def unread_figure(count: int) -> dict[str, Any]:
    """What says among an answer's figures that the model did not read the first `count` turns."""
    return {"unread_turns": count} if count else {}


def new_id() -> str:
    """A short name for a new chat that can be typed."""
    return "".join(SystemRandom().choices(_ALPHABET, k=_ID_LETTERS))


def title_of(question: str) -> str:
    """What a chat is called until somebody names it: the beginning of its first question."""
    words = " ".join(question.split())
    return words if len(words) <= _TITLE_LETTERS else words[: _TITLE_LETTERS - 1].rstrip() + "…"


def conversation_of(system: str, turns: tuple[Turn, ...]) -> Conversation:
    """What the engine is to read."""
    first = (Message("system", system),) if system else ()
    return Conversation((*first, *(Message(turn.role, turn.text, turn.reasoning) for turn in turns)))

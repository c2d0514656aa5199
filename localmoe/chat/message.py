"""Messages and conversations, as plain frozen values."""

from dataclasses import dataclass, replace
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `reasoning` is an assistant's thought, kept apart from its text."""

    role: Role
    text: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """All turns in order; at most one system message, and it comes first."""

    messages: tuple[Message, ...] = ()

    @property
    def system(self) -> str:
        """The system prompt, or an empty string."""
        return next((m.text for m in self.messages if m.role == "system"), "")

    def add(self, message: Message) -> "Conversation":
        """This conversation with one more turn."""
        return replace(self, messages=(*self.messages, message))

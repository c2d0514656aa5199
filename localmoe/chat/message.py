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

    @property
    def num_turns(self) -> int:
        """Questions and answers: the system prompt is none of them."""
        return sum(message.role != "system" for message in self.messages)

    @property
    def last_role(self) -> Role | None:
        """Whose turn the last one was; None when nothing was said yet."""
        return self.messages[-1].role if self.num_turns else None

    def without_last(self, count: int) -> "Conversation":
        """This conversation before its last `count` turns."""
        return replace(self, messages=self.messages[: len(self.messages) - count])

    def without_first(self, count: int) -> "Conversation":
        """This conversation without its first `count` turns; the system prompt stays."""
        system = self.messages[: len(self.messages) - self.num_turns]
        return replace(self, messages=system + self.messages[len(system) + count :])

    def with_system(self, text: str) -> "Conversation":
        """This conversation under another system prompt; none where `text` is empty."""
        turns = tuple(message for message in self.messages if message.role != "system")
        return replace(self, messages=(*((Message("system", text),) if text else ()), *turns))

    def add(self, message: Message) -> "Conversation":
        """This conversation with one more turn."""
        return replace(self, messages=(*self.messages, message))

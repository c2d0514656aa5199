"""What this room needs of a tokenizer, which the hub's one offers unknowingly, and what it offers to the engine."""

from collections.abc import Iterable
from typing import Protocol

from localmoe.chat.message import Conversation
from localmoe.errors import UsageError

Part = tuple[str, bool]  # text, and whether it is the template's own, so that its special tokens count


class TextStream(Protocol):
    """Token ids to text, one at a time."""

    def feed(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class Tokenizer(Protocol):
    """Text to token ids, with trust for each part of it."""

    @property
    def chat_template(self) -> str | None: ...

    @property
    def special_tokens(self) -> dict[str, str]: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def eos_id(self) -> int | None: ...

    def token_id(self, token: str) -> int | None: ...

    def encode_parts(self, parts: Iterable[Part]) -> list[int]: ...

    def text_stream(self) -> TextStream: ...


class Template(Protocol):
    """How one family of models writes a conversation down."""

    @property
    def name(self) -> str: ...

    @property
    def why(self) -> str:
        """One sentence for the plan: how this template was chosen."""
        ...

    @property
    def default_think(self) -> bool: ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    def encode(self, conversation: Conversation, think: bool | None = None) -> list[int]:
        """The whole prompt, up to where the answer begins. UsageError when it does not end with a user's message."""
        ...

    def starts_in_thought(self, think: bool | None = None) -> bool:
        """Whether the prompt ends inside a thought."""
        ...


def require_question(conversation: Conversation) -> None:
    """UsageError unless the last message is a user's: a partial answer is never continued."""
    last = conversation.messages[-1].role if conversation.messages else None
    if last == "user":
        return
    if last == "assistant":
        raise UsageError(
            "The conversation ends with an answer; there is nothing to reply to.",
            "add a message, or take the answer away to have it written again.",
        )
    raise UsageError("The conversation has no message to answer.", "add a user's message.")

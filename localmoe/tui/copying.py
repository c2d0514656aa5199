"""Which answer, question or block of code is copied: the last one first, and with each further press the one before."""

import re
from time import monotonic

from localmoe.chat.message import Conversation, Role
from localmoe.tui.printable import printable

_SERIES_S = 4.0  # presses that follow within this go further back
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<info>[^\n]*)\n(?P<code>.*?)(?:^ *(?P=mark)[`~]*\s*?$|\Z)", re.M | re.S
)


class Copies:
    """Goes back through what can be copied."""

    def __init__(self) -> None:
        self._kind, self._place, self._pressed_s = "", 0, 0.0

    def next(self, kind: str, texts: list[str]) -> tuple[str, str] | None:
        """The text to copy, and which it is in words; None where there is none."""
        goes_on = kind == self._kind and monotonic() - self._pressed_s < _SERIES_S
        self._place = (self._place + 1) % max(1, len(texts)) if goes_on else 0
        self._kind, self._pressed_s = kind, monotonic()
        if not texts:
            return None
        which = f"the last {kind}" if self._place == 0 else f"{kind} {len(texts) - self._place} of {len(texts)}"
        return texts[-1 - self._place], which


def texts_of(conversation: Conversation, role: Role, unfinished: str = "") -> list[str]:
    """All that `role` said, the answer that is being made last."""
    said = [printable(message.text) for message in conversation.messages if message.role == role]
    return [*said, unfinished] if unfinished else said


def code_in(texts: list[str]) -> list[str]:
    """The blocks of code in Markdown texts, in order."""
    return [_code(match) for text in texts for match in _FENCE.finditer(text)]


def _code(match: re.Match[str]) -> str:
    indent = len(match["indent"])
    lines = match["code"].removesuffix("\n").split("\n")
    return (
        "\n".join(line[indent:] if line[:indent].isspace() else line for line in lines)
        if indent
        else match["code"].removesuffix("\n")
    )

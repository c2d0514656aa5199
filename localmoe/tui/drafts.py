"""What is in the prompt, in tokens: files and folded texts by name, and all of it."""

from dataclasses import dataclass

from localmoe.chat.attachment import mentions, read_text, section_of
from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineFace
from localmoe.errors import UsageError
from localmoe.tui import figures, slash
from localmoe.tui.blocks import Blocks

_NUM_KEPT = 16


class TextCounter:
    """Tokens of single texts, the last ones remembered: most of a draft stays from one key to the next."""

    def __init__(self, engine: EngineFace) -> None:
        self.engine = engine
        self._count = engine.count_tokens
        self._counted: dict[str, int] = {}
        self._around: int | None = None  # what a message has without its text

    def __call__(self, text: str) -> int:
        if self._around is None:
            self._around = self._count(Conversation((Message("user", ""),)))
        if (known := self._counted.pop(text, None)) is None:
            known = max(0, self._count(Conversation((Message("user", text),))) - self._around)
        self._counted[text] = known
        if len(self._counted) > _NUM_KEPT:
            del self._counted[next(iter(self._counted))]
        return known


@dataclass(frozen=True, slots=True)
class Draft:
    """Its parts in words, and its tokens."""

    parts: tuple[str, ...] = ()
    num_tokens: int = 0
    has_trouble: bool = False

    @property
    def words(self) -> str:
        """One line; empty where nothing but words was typed."""
        total = [f"{figures.tokens(self.num_tokens)} tok in all"] if self.parts and self.num_tokens else []
        return " · ".join((*self.parts, *total))


def measure(shown: str, blocks: Blocks, count: TextCounter | None) -> Draft:
    """The draft that the prompt shows as `shown`; without `count` no tokens are known yet. Reads files."""
    if slash.parse(shown):
        return Draft()  # a command is not sent
    parts: list[str] = []
    total = count(blocks.whole(shown)) if count and shown.strip() else 0
    has_trouble = False
    for label in dict.fromkeys(blocks.labels_in(shown)):
        parts.append(_part(label.strip("[ ]"), blocks.whole(label), count))
    for name, path in {mention.name: mention.path for mention in mentions(shown)}.items():
        try:
            text = section_of(name, read_text(path))
        except UsageError as error:
            parts.append(error.message)
            has_trouble = True
            continue
        parts.append(_part(name, text, count))
        total += count(text) if count else 0
    return Draft(tuple(parts), total, has_trouble)


def _part(name: str, text: str, count: TextCounter | None) -> str:
    return f"{name} {figures.tokens(count(text))} tok" if count else name

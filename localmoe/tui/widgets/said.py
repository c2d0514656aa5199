"""A text that was sent, or a file by its name: what is long is folded."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from localmoe.tui.printable import printable
from localmoe.tui.widgets.line import Line
from localmoe.tui.widgets.settled import Settled

_SHOWN_LINES, _SHOWN_LETTERS = 16, 2_000  # of a text that is longer than 1.5 times that


class Said(Settled, Vertical):
    """Never markup, never Markdown. A click opens and closes what is folded."""

    DEFAULT_CSS = """
    Said {
        height: auto;
        & > .said { height: auto; }
        & > .fold { height: 1; color: $text-muted; }
        & > .fold:hover { color: $text-accent; }
    }
    """

    def __init__(self, text: str, file: str = "") -> None:
        super().__init__()
        self._text, self._file = printable(text), printable(file)
        self._head = "" if file else _head(self._text)
        self._is_open = False

    def compose(self) -> ComposeResult:
        yield Line(self._head, classes="said")
        yield Line(classes="fold")

    def on_mount(self) -> None:
        self._draw()

    def on_click(self) -> None:
        if self._is_foldable:
            self._is_open = not self._is_open
            self._draw()

    @property
    def _is_foldable(self) -> bool:
        return bool(self._file) or self._text != self._head

    def _draw(self) -> None:
        shown = self._text if self._is_open else self._head
        said, fold = self.query_one(".said", Line), self.query_one(".fold", Line)
        said.update(shown)
        said.display = bool(shown)
        fold.display = self._is_foldable
        fold.show(Content(f"{'▾' if self._is_open else '▸'} {self._fold_words}"))

    @property
    def _fold_words(self) -> str:
        if self._file:
            return f"{self._file}, {_lines(self._text)}"
        return f"{_lines(self._text[len(self._head) :].strip(chr(10)))} more"


def _head(text: str) -> str:
    """All of a text, or the beginning of a long one."""
    lines = text.split("\n")
    if len(lines) <= _SHOWN_LINES * 1.5 and len(text) <= _SHOWN_LETTERS * 1.5:
        return text
    return "\n".join(lines[:_SHOWN_LINES])[:_SHOWN_LETTERS]


def _lines(text: str) -> str:
    count = text.count("\n") + 1
    return f"{count:,} line{'s' * (count != 1)}"

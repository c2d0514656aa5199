"""The list over the prompt: how what is typed there could go on."""

from typing import TYPE_CHECKING

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from localmoe.tui import figures

if TYPE_CHECKING:
    from localmoe.tui.suggest import Suggestion

_NUM_ROWS = 7


class Suggestions(Static):
    """Some of the suggestions around the marked one. The prompt hands it its keys while it is open."""

    DEFAULT_CSS = """
    Suggestions {
        display: none; height: auto; max-height: 8; padding: 0 2; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Suggestions.-open { display: block; }
    """

    class Picked(Message):
        """A click chose the marked suggestion."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._found: list[Suggestion] = []
        self._before = ""
        self._marked = 0

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose."""
        return bool(self._found)

    @property
    def marked(self) -> "Suggestion":
        """The one that Tab takes."""
        return self._found[self._marked]

    def is_for(self, before: str) -> bool:
        """Whether it is open, and for this text: it was looked up while more may have been typed."""
        return self.is_open and self._before == before

    def offer(self, found: "list[Suggestion]", before: str = "") -> None:
        """Shows what was found for the text `before` the cursor; nothing closes the list."""
        self._before = before
        if found != self._found:
            self._found, self._marked = found, 0
            self.set_class(bool(found), "-open")
            self._draw()

    def move(self, step: int) -> None:
        """Marks the next one, around the ends."""
        self._marked = (self._marked + step) % len(self._found)
        self._draw()

    def on_click(self, event: Click) -> None:
        row = self._first + event.y
        if row < len(self._found):
            self._marked = row
            self.post_message(self.Picked())

    @property
    def _first(self) -> int:
        return max(0, min(self._marked - _NUM_ROWS // 2, len(self._found) - _NUM_ROWS))

    def _draw(self) -> None:
        shown = self._found[self._first : self._first + _NUM_ROWS]
        width = max((figures.cells(one.label) for one in shown), default=0)
        rows = [self._row(one, one is self._found[self._marked], width) for one in shown]
        hidden = len(self._found) - len(shown)
        more = [Content.styled(f"  and {hidden:,} more", "$foreground 50%")] if hidden else []
        self.update(Content("\n").join(rows + more))

    def _row(self, one: "Suggestion", is_marked: bool, width: int) -> Content:
        label = figures.cut(one.label, 60)
        mark, style = ("❯ ", "bold $primary") if is_marked else ("  ", "$foreground")
        gap = " " * max(2, min(width, 60) - figures.cells(label) + 2)
        return Content.assemble((mark + label, style), gap, (one.help, "$foreground 60%"))

"""A page to read over the chat: scrolls, and Esc closes it."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class PageScreen(ModalScreen[None]):
    """A title, parts one under the other, and a remark."""

    DEFAULT_CSS = """
    PageScreen {
        align: center middle;
        & > VerticalScroll {
            width: 84; max-width: 95%; height: auto; max-height: 95%;
            border: round $primary; border-title-color: $primary; background: $surface; padding: 0 2;
        }
        & Static { height: auto; }
        & .heading { color: $primary; text-style: bold; margin-top: 1; }
        & .note { color: $text-muted; margin-top: 1; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close", id="page.close")]

    def __init__(self, title: str, parts: list[Content | str], note: str = "") -> None:
        """A part that is a string is a heading."""
        super().__init__()
        self._title, self._parts, self._note = title, parts, note

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = self._title
            for part in self._parts:
                yield Static(part, classes="heading" if isinstance(part, str) else "", markup=False)
            yield Static(f"{self._note} Esc closes this.".lstrip(), classes="note", markup=False)


def table(rows: list[tuple[str, str]]) -> Content:
    """Two columns, the first one as wide as it must be."""
    width = max((len(left) for left, _ in rows), default=0) + 2
    return Content("\n").join([Content.assemble((left.ljust(width), "bold $primary"), right) for left, right in rows])

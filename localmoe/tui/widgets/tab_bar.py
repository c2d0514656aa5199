"""The tabs in one line: which one is shown, which ones answer, and where something new came meanwhile."""

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from localmoe.tui.printable import printable
from localmoe.tui.tabs import Head, State
from localmoe.tui.widgets.line import Line

_LEAST_LETTERS, _MOST_LETTERS = 3, 24
_AROUND = 7  # cells of a tab beside its title, for numbers below 100
_MARKS: dict[State, str] = {"idle": " ", "waiting": "◌", "busy": "◐", "news": "●"}
_COLOURS: dict[State, str] = {"idle": "", "waiting": "$foreground 60%", "busy": "$primary", "news": "$text-accent"}


class TabBar(Line):
    """Hidden while there is one tab only. A click shows a tab."""

    DEFAULT_CSS = """
    TabBar {
        height: 1; padding: 0 1; background: $panel; display: none; text-wrap: nowrap; text-overflow: ellipsis;
        &.-several { display: block; }
    }
    """

    def show_tabs(self, heads: Sequence[Head]) -> None:
        """Draws what changed."""
        self.set_class(len(heads) > 1, "-several")
        if len(heads) > 1:
            self.show(drawn(heads, self.app.size.width))


def drawn(heads: Sequence[Head], width: int) -> Content:
    """` 1 Why is the sky ◐  2 new chat ● `, each title as long as there is room."""
    room = (width - 2) // max(1, len(heads)) - _AROUND
    letters = max(_LEAST_LETTERS, min(_MOST_LETTERS, room))
    return Content("").join(_tab(number, head, letters) for number, head in enumerate(heads, 1))


def _tab(number: int, head: Head, letters: int) -> Content:
    title = printable(head.title) or "new chat"
    title = title if len(title) <= letters else title[: letters - 1] + "…"
    tab = Content.assemble(
        f" {number} ", (title, "bold" if head.is_current else ""), " ", (_MARKS[head.state], _COLOURS[head.state]), " "
    )
    tab = tab.stylize("$text on $primary 25%" if head.is_current else "$foreground 70%")
    return tab.stylize(Style.from_meta({"@click": f"screen.go_to_tab('{number}')"}))

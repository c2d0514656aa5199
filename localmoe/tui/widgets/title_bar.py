"""The first line: the program, the model and what it is, the context used."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from localmoe.tui import figures
from localmoe.tui.printable import printable
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.line import Line

_GAUGE_CELLS = 10


class TitleBar(Horizontal):
    """`localmoe   guide · a tiny demonstration model (12 M)      1,210 of 4,096 ▓▓▓░░░░░░░`."""

    DEFAULT_CSS = """
    TitleBar {
        height: 1; background: $panel; padding: 0 1;
        & > #title { width: 1fr; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & > #context { width: auto; height: 1; color: $text-muted; margin-left: 2; }
    }
    """

    def __init__(self, asked_model: str) -> None:
        super().__init__()
        self._asked_model = asked_model

    def compose(self) -> ComposeResult:
        yield Line(id="title")
        yield Line(id="context")

    def show_model(self, readings: Readings) -> None:
        """Draws what changed."""
        info = readings.info
        title = _title(info.model, info.description) if info else _title(self._asked_model, "")
        self.query_one("#title", Line).show(title)
        self.query_one("#context", Line).show(_context(readings))


def _title(model: str, description: str) -> Content:
    what_it_is = f" · {printable(description)}" if description else ""
    return Content.assemble(
        ("localmoe", "bold $primary"), "   ", (printable(model), "bold"), (what_it_is, "$foreground 60%")
    )


def _context(readings: Readings) -> Content:
    limit = readings.info.context_limit if readings.info else 0
    if not limit:
        return Content("")
    used = readings.stats.context_tokens if readings.stats else 0
    full, empty = figures.gauge(used / limit, _GAUGE_CELLS)
    words = f"{figures.tokens(used)} of {figures.tokens(limit)} "
    return Content.assemble(words, (full, "$primary"), (empty, "$foreground 25%"))

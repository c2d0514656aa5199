"""The first line: the program, the model and what it is, the context used and what the draft would add."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from localmoe.tui import figures
from localmoe.tui.printable import printable
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.line import Line

_GAUGE_CELLS = 10


class ContextLine(Line):
    """At the right edge, where a shorter text needs no new layout: it keeps the room, if nobody else needs it."""

    is_room_needed = True  # by the title

    def _has_width_for(self, content: Content) -> bool:
        width = content.cell_length
        return width == self.size.width or (width < self.size.width and not self.is_room_needed)


class TitleBar(Horizontal):
    """`localmoe   guide · a tiny demonstration model (12 M)      1,210 of 4,096 ▓▓▓░░░░░░░`."""

    DEFAULT_CSS = """
    TitleBar {
        height: 1; background: $panel; padding: 0 1;
        & > #title { width: 1fr; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & > #context { width: auto; height: 1; color: $text-muted; margin-left: 2; text-align: right; }
    }
    """

    def __init__(self, asked_model: str) -> None:
        super().__init__()
        self._asked_model = asked_model
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Line(id="title")
        yield ContextLine(id="context")

    def ask_for(self, model: str) -> None:
        """Says `model` until there is an engine that has a name for it."""
        self._asked_model = model

    def show_model(self, readings: Readings) -> None:
        """Draws what changed."""
        info = readings.info
        drawn = info, self._asked_model, readings.context_tokens, readings.draft_tokens, readings.unread_turns
        if drawn == self._drawn:
            return
        self._drawn = drawn
        title = _title(info.model, info.description) if info else _title(self._asked_model, "")
        line, context = self.query_one("#title", Line), self.query_one(ContextLine)
        line.show(title)
        context.is_room_needed = title.cell_length > line.size.width
        context.show(_context(readings))


def _title(model: str, description: str) -> Content:
    what_it_is = f" · {printable(description)}" if description else ""
    return Content.assemble(
        ("localmoe", "bold $primary"), "   ", (printable(model), "bold"), (what_it_is, "$foreground 60%")
    )


def _context(readings: Readings) -> Content:
    limit = readings.info.context_limit if readings.info else 0
    if not limit:
        return Content("")
    used, draft = readings.context_tokens, readings.draft_tokens
    full, _ = figures.gauge(used / limit, _GAUGE_CELLS)
    with_draft, _ = figures.gauge((used + draft) / limit, _GAUGE_CELLS)
    left_out = f"{readings.unread_turns} turns left out · " if readings.unread_turns else ""
    more = f" + {figures.tokens(draft)}" if draft else ""
    is_too_much = draft and used + draft > limit
    return Content.assemble(
        (left_out, "$text-accent"),
        (f"{figures.tokens(used)}{more} of {figures.tokens(limit)} ", "$text-error" if is_too_much else ""),
        (full, "$primary"),
        (with_draft[len(full) :], "$accent"),
        ("░" * (_GAUGE_CELLS - len(with_draft)), "$foreground 25%"),
    )

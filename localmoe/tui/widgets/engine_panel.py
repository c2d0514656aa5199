"""The view into the engine: figures that were measured, and the plan in its own words."""

from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localmoe.engine.request import EngineInfo
from localmoe.events import Stats
from localmoe.tui import figures
from localmoe.tui.printable import printable
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.line import Line

_SPARK_CELLS = 14
_GAUGE_CELLS = 16
_LABEL_CELLS = 11


class EnginePanel(VerticalScroll, can_focus=False):
    """At the right on wide terminals; F2 hides it."""

    DEFAULT_CSS = """
    EnginePanel {
        width: 42; padding: 1 1 0 2; border-left: vkey $foreground 20%; display: none; scrollbar-size: 1 1;
        & > Static { height: auto; margin-bottom: 1; }
        & > .plan { height: auto; color: $text-muted; }
        & > .plan > .dot { width: 2; }
        & > .plan > .sentence { width: 1fr; height: auto; }
        & > .heading { margin: 0; text-style: bold; color: $primary; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._speed, self._memory, self._engine = Line(), Line(), Line()

    def introduce(self, info: EngineInfo) -> None:
        """Fills the panel, once there is an engine to look into."""
        sections = (("Speed", self._speed), ("Memory", self._memory), ("Engine", self._engine))
        for name, line in sections:
            self.mount(Static(name, classes="heading", markup=False), line)
        self.mount(Static("Plan", classes="heading", markup=False), *map(_sentence, info.plan))

    def show_figures(self, readings: Readings) -> None:
        """Draws what changed."""
        if readings.info:
            self._speed.show(_speed(readings))
            self._memory.show(_memory(readings.info, readings.stats))
            self._engine.show(_engine(readings.info))


def _sentence(text: str) -> Horizontal:
    dot = Static("·", classes="dot", markup=False)
    return Horizontal(dot, Static(printable(text), classes="sentence", markup=False), classes="plan")


def _speed(readings: Readings) -> Content:
    stats = readings.stats
    reading_tok_s = readings.prefill.tok_s if readings.prefill else None
    bars = figures.sparkline(readings.decode_tok_s, _SPARK_CELLS)
    return _rows(
        ("TTFT", figures.seconds(stats.ttft_s if stats else None)),
        ("Prefill", figures.rate(reading_tok_s or (stats.prefill_tok_s if stats else None))),
        ("Decode", figures.rate(stats.decode_tok_s if stats else None), bars),
        ("Queue", str(stats.num_queued if stats else 0)),
    )


def _memory(info: EngineInfo, stats: Stats | None) -> Content:
    used, limit = (stats.context_tokens if stats else 0), info.context_limit
    full, empty = figures.gauge(used / limit, _GAUGE_CELLS)
    return Content("\n").join(
        [
            _row("Context", f"{figures.tokens(used)} of {figures.tokens(limit)} tok"),
            Content.assemble(" " * _LABEL_CELLS, (full, "$primary"), (empty, "$foreground 25%")),
            _row("Cached", f"{stats.cached_tokens:,} of {stats.prompt_tokens:,} tok" if stats else figures.UNKNOWN),
            _row("Weights", figures.size(info.weight_bytes)),
            _row("Cache", figures.size(info.cache_bytes)),
        ]
    )


def _engine(info: EngineInfo) -> Content:
    return _rows(
        ("Model", printable(info.model)),
        ("ISA", info.isa),
        ("Threads", str(info.num_threads)),
        ("Opened in", figures.seconds(info.load_s)),
    )


def _rows(*rows: tuple[str, ...]) -> Content:
    return Content("\n").join([_row(*row) for row in rows])


def _row(label: str, value: str, bars: str = "") -> Content:
    return Content.assemble(
        (label.ljust(_LABEL_CELLS), "$foreground 60%"), value, (f"  {bars}", "$primary") if bars else ""
    )

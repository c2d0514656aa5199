"""The engine panel in one line, for terminals that are too narrow for it."""

from textual.content import Content

from localmoe.events import Lanes
from localmoe.tui import figures
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.lanes import layer_words, load_rate
from localmoe.tui.widgets.line import Line


class StatusLine(Line):
    """`prefill 1,212 tok/s · overlap 97 % · 53.1 GB/s · layer 41 of 61`, then TTFT and the rates."""

    DEFAULT_CSS = """
    StatusLine {
        display: none; height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def show_figures(self, readings: Readings) -> None:
        """Draws what changed."""
        self.show(Content(fitting(_parts(readings), self.app.size.width - 2)))


def fitting(parts: list[str], width: int) -> str:
    """As many of `parts`, from the first on, as there is room for."""
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if len(longer) > width and line:
            break
        line = longer
    return line


def _parts(readings: Readings) -> list[str]:
    info, stats = readings.info, readings.stats
    if not info:
        return []
    loads = _loads(readings.lanes) if readings.is_busy else []
    if readings.phase == "prefill" and readings.prefill and readings.prefill.tok_s:
        layer = [words] if loads and readings.lanes and (words := layer_words(readings.lanes)) else []
        cached = f"cached {readings.prefill.cached_tokens:,}"
        return [f"prefill {figures.rate(readings.prefill.tok_s)}", *loads, *layer, cached]
    if not stats:
        return [f"{info.isa}", f"{info.num_threads} threads", f"weights {figures.size(info.weight_bytes)}"]
    bars = figures.sparkline(readings.decode_tok_s, 12)
    return [
        f"TTFT {figures.seconds(stats.ttft_s)}",
        f"prefill {figures.rate(stats.prefill_tok_s)}",
        f"decode {figures.rate(stats.decode_tok_s)} {bars}".rstrip(),
        *(loads or [f"cached {figures.tokens(stats.cached_tokens)}"]),
    ]


def _loads(lanes: Lanes | None) -> list[str]:
    """What moves; nothing where nothing does."""
    if not lanes or not (rate := load_rate(lanes)):
        return []
    overlap = [f"overlap {figures.percent(lanes.overlap)}"] if lanes.overlap is not None else []
    return [*overlap, rate]

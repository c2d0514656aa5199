"""The engine panel in one line, for terminals that are too narrow for it."""

from textual.content import Content

from localmoe.tui import figures
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.line import Line


class StatusLine(Line):
    """`TTFT 0.3 s · prefill 1,212 tok/s · decode 21.4 tok/s ▁▂▅▇ · cached 900`."""

    DEFAULT_CSS = """
    StatusLine {
        display: none; height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def show_figures(self, readings: Readings) -> None:
        """Draws what changed."""
        self.show(Content(" · ".join(_parts(readings))))


def _parts(readings: Readings) -> list[str]:
    info, stats = readings.info, readings.stats
    if not info:
        return []
    if readings.phase == "prefill" and readings.prefill and readings.prefill.tok_s:
        return [f"prefill {figures.rate(readings.prefill.tok_s)}", f"cached {readings.prefill.cached_tokens:,}"]
    if not stats:
        return [f"{info.isa}", f"{info.num_threads} threads", f"weights {figures.size(info.weight_bytes)}"]
    bars = figures.sparkline(readings.decode_tok_s, 12)
    return [
        f"TTFT {figures.seconds(stats.ttft_s)}",
        f"prefill {figures.rate(stats.prefill_tok_s)}",
        f"decode {figures.rate(stats.decode_tok_s)} {bars}".rstrip(),
        f"cached {figures.tokens(stats.cached_tokens)}",
    ]

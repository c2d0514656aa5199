"""The view into the engine: figures that were measured, and the plan in its own words."""

from time import monotonic

from textual.containers import VerticalScroll
from textual.content import Content

from localmoe.engine.request import EngineInfo
from localmoe.events import Stats, Workers
from localmoe.tui import figures, pace
from localmoe.tui.printable import printable
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.heat import heat_rows, heat_title
from localmoe.tui.widgets.lanes import lanes_rows, lanes_title
from localmoe.tui.widgets.line import Line

_SPARK_CELLS = 14
_LABEL_CELLS = 11
_INNER_CELLS = 37  # within border, padding and scroll bar
_HEAT_ROWS = 5
_LINE_BREAK = Content("\n")
_ISA = {
    "scalar": "scalar, no vectors",
    "avx2": "AVX2",
    "avx2_zen": "AVX2, made for Zen",
    "avx512": "AVX-512",
    "avx512_zen": "AVX-512, made for Zen",
    "avx512_bf16": "AVX-512 with BF16 products",
    "amx_bf16": "AMX with BF16 products",
}


class EnginePanel(VerticalScroll, can_focus=False):
    """At the right on wide terminals; F2 hides it."""

    DEFAULT_CSS = """
    EnginePanel {
        width: 42; padding: 1 1 0 2; border-left: vkey $foreground 20%; display: none; scrollbar-size: 1 1;
        & > Line { height: auto; margin-bottom: 1; }
    }
    """

    _phase = ""  # in which figures were drawn last
    _drawn_s = 0.0  # and when

    def empty(self) -> None:
        """There is no engine to look into."""
        self.remove_children()

    def introduce(self, info: EngineInfo) -> None:
        """Fills the panel, once there is an engine to look into."""
        self.empty()
        self._speed, self._lanes, self._heat, self._memory, self._engine = (Line() for _ in range(5))
        plan = Line(_section("Plan", *map(_sentence, info.plan)))
        self.mount(self._speed, self._lanes, self._heat, self._memory, self._engine, plan)

    def show_figures(self, readings: Readings) -> None:
        """Draws what changed, at once where something begins or ends."""
        if not readings.info or self._can_wait(readings.phase):
            return
        self._phase, self._drawn_s = readings.phase, monotonic()
        is_reading = readings.phase == "prefill"
        lanes = lanes_title(readings.lanes, is_running=readings.is_busy)
        self._speed.show(_section("Speed", _speed(readings)))
        self._lanes.show(_section(lanes, lanes_rows(readings.lanes, _INNER_CELLS, is_reading=is_reading)))
        self._heat.show(_section(heat_title(readings.heat), heat_rows(readings.heat, _HEAT_ROWS)))
        self._memory.show(_section("Memory", _memory(readings.info, readings.stats)))
        self._engine.show(_section("Engine", _engine(readings.info)))

    def _can_wait(self, phase: str) -> bool:
        is_writing = phase == self._phase and phase in ("thinking", "answering")
        return is_writing and monotonic() - self._drawn_s < pace.FIGURES_EVERY_S


def _section(title: str, *rows: Content) -> Content:
    return _LINE_BREAK.join([Content.styled(title, "bold $primary"), *rows])


def _sentence(text: str) -> Content:
    """Behind a dot, its further lines too."""
    lines = Content(printable(text)).wrap(_INNER_CELLS - 2)
    return _LINE_BREAK.join([("· " if n == 0 else "  ") + line for n, line in enumerate(lines)]).stylize("$text-muted")


def _speed(readings: Readings) -> Content:
    stats = readings.stats
    reading_tok_s = readings.prefill.tok_s if readings.prefill else None
    prefill = figures.rate(reading_tok_s or (stats.prefill_tok_s if stats else None))
    decode = figures.rate(stats.decode_tok_s if stats else None)
    rows: list[tuple[str, ...]] = [
        ("Prompt", *_prompt(readings)),
        ("TTFT", figures.seconds(stats.ttft_s if stats else None)),
        ("Prefill", prefill, figures.sparkline(readings.prefill_tok_s, _SPARK_CELLS)),
        ("Decode", decode, figures.sparkline(readings.decode_tok_s, _SPARK_CELLS)),
    ]
    if stats and stats.workers:
        rows += _workers(stats.workers)
    if stats and stats.num_queued:
        rows.append(("Queue", str(stats.num_queued)))
    return _rows(*rows)


def _prompt(readings: Readings) -> tuple[str, ...]:
    """How far it is read, and how long that still takes; its length once it is."""
    progress, stats = readings.prefill, readings.stats
    if readings.phase != "prefill" or not progress:
        return (f"{stats.prompt_tokens:,} tok" if stats else figures.UNKNOWN,)
    share = progress.done_tokens / max(1, progress.total_tokens)
    words = ", ".join(part for part in (figures.percent(share), figures.estimate(progress.eta_s)) if part)
    return words, "".join(figures.gauge(share, max(0, _INNER_CELLS - _LABEL_CELLS - len(words) - 2)))


def _workers(workers: Workers) -> list[tuple[str, ...]]:
    """Who works for decode and for prefill, and how long decode waits for tiles of prefill."""
    rows: list[tuple[str, ...]] = [("Workers", f"{workers.urgent:.1f} decode, {workers.bulk:.1f} prefill")]
    if workers.num_waits:
        middle, most = f"p50 {workers.wait_p50_us:,.0f}  p99 {workers.wait_p99_us:,.0f}", workers.wait_max_us
        with_most = f"{middle}  max {most:,.0f}"
        rows.append(("Waits µs", with_most if len(with_most) <= _INNER_CELLS - _LABEL_CELLS else middle))
    return rows


def _memory(info: EngineInfo, stats: Stats | None) -> Content:
    used, limit = (stats.context_tokens if stats else 0), info.context_limit
    return _LINE_BREAK.join(
        [
            _row("Context", f"{figures.tokens(used)} of {figures.tokens(limit)} tok"),
            _row("Cached", f"{stats.cached_tokens:,} of {stats.prompt_tokens:,} tok" if stats else figures.UNKNOWN),
            _row("Weights", figures.size(info.weight_bytes)),
            _row("Cache", _cache(info, stats)),
        ]
    )


def _cache(info: EngineInfo, stats: Stats | None) -> str:
    whole = figures.size(info.cache_bytes)
    return f"{figures.size(stats.cache_used_bytes)} of {whole}" if stats and stats.cache_used_bytes else whole


def _engine(info: EngineInfo) -> Content:
    return _rows(
        ("ISA", _ISA.get(info.isa, info.isa)),
        ("Threads", f"{info.num_threads}"),
        ("Opened in", figures.seconds(info.load_s)),
    )


def _rows(*rows: tuple[str, ...]) -> Content:
    return _LINE_BREAK.join([_row(*row) for row in rows])


def _row(label: str, value: str, bars: str = "") -> Content:
    """Of at most _INNER_CELLS: of bars the last ones, as many as there is room for."""
    room = _INNER_CELLS - _LABEL_CELLS - len(value) - 2
    bars = bars[-room:] if room > 0 else ""
    return Content.assemble(
        (label.ljust(_LABEL_CELLS), "$foreground 60%"), value, (f"  {bars}", "$primary") if bars else ""
    )

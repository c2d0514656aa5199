"""The line over the prompt: what runs right now, how far it is, and an estimate."""

from dataclasses import dataclass

from textual.content import Content

from localmoe.events import Loading, PrefillProgress, Queued
from localmoe.tui import figures
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.line import Line

_WIDE, _TINY = 100, 60
_PADDING = 4  # cells beside the line


@dataclass(frozen=True, slots=True)
class Doing:
    """In words, with a bar where the end is known."""

    what: str
    fraction: float | None = None
    rest: str = ""

    @property
    def word(self) -> str:
        """The first word, where there is room for no more."""
        return self.what.split()[0].rstrip(",") if self.what else ""


class Activity(Line):
    """Empty while nothing runs; its line stays, so that nothing jumps."""

    DEFAULT_CSS = """
    Activity { height: 1; padding: 0 2; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def show_doing(self, readings: Readings) -> None:
        """Draws what changed."""
        self.show(_drawn(doing(readings), self.app.size.width))


def doing(readings: Readings) -> Doing:
    """What `readings` say is going on."""
    stats = readings.stats
    match readings.phase:
        case "opening":
            return _loading(readings.loading)
        case "waiting":
            return _waiting(readings.queued)
        case "prefill":
            return _reading(readings.prefill)
        case "thinking":
            return Doing("Thinking", None, f"{figures.tokens(stats.thought_tokens)} tok" if stats else "")
        case "answering":
            return Doing("Answering", None, figures.rate(stats.decode_tok_s) if stats and stats.decode_tok_s else "")
        case "stopping":
            return Doing("Stopping")
        case "closed":
            return Doing("The model is not open. Enter opens it")
    return Doing("")


def _waiting(event: Queued | None) -> Doing:
    if not event:
        return Doing("Waiting for the engine")
    return Doing(f"Waiting, {event.position + 1} before this one", None, figures.turn(event.eta_s))


def _loading(event: Loading | None) -> Doing:
    if not event or not event.total_bytes:
        return Doing("Opening the model")
    done, total = figures.size(event.done_bytes), figures.size(event.total_bytes)
    speed = f"   {figures.size(round(event.rate_bytes_s))}/s" if event.rate_bytes_s else ""
    rest = figures.estimate(event.eta_s) + speed
    return Doing(f"Opening, {event.stage}: {done} of {total}", event.done_bytes / event.total_bytes, rest)


def _reading(event: PrefillProgress | None) -> Doing:
    if not event or not event.total_tokens:
        return Doing("Reading")
    words = f"Reading {event.done_tokens:,} of {event.total_tokens:,} tok"
    return Doing(words, event.done_tokens / event.total_tokens, figures.estimate(event.eta_s))


def _drawn(doing: Doing, width: int) -> Content:
    if 0 < width < _TINY:
        percent = figures.percent(doing.fraction) if doing.fraction is not None else ""
        return Content("   ".join(part for part in (f"{doing.word} {percent}".strip(), doing.rest) if part))
    parts: list[Content | str | tuple[str, str]] = [doing.what]
    if doing.fraction is not None:
        used = len(f"{doing.what}    {figures.percent(doing.fraction)}   {doing.rest}") + _PADDING
        cells = max(0, min(20 if width >= _WIDE else 10, width - used))  # what is in words comes first
        full, empty = figures.gauge(doing.fraction, cells)
        parts += ["  ", (full, "$primary"), (empty, "$foreground 25%"), f"  {figures.percent(doing.fraction)}"]
    if doing.rest:
        parts.append(f"   {doing.rest}")
    return Content.assemble(*parts)

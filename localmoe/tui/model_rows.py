"""Models as rows of a table that fits its place: what has no room is left out, nothing overlaps."""

from dataclasses import dataclass

from textual.content import Content

from localmoe.engine.outlook import LONG_PROMPT, Outlook
from localmoe.tui import figures
from localmoe.tui.forecasts import UNKNOWN, duration, gigabytes, kilo, marked, speed
from localmoe.tui.model_list import Listed
from localmoe.tui.printable import printable
from localmoe.tui.transfers import Transfer

_FAINT = "$foreground 60%"
_LEAST_NAME = 21  # cells: the longest name of the catalogue


@dataclass(frozen=True, slots=True)
class Column:
    """One column, `cells` wide; those of the lowest `rank` go last."""

    head: str
    cells: int
    rank: int
    is_number: bool = False


SIZE = Column("size", 9, 2, is_number=True)
HERE = Column("here", 11, 0)
RUNS = Column("this machine", 15, 1)
DECODE = Column("decode", 12, 3, is_number=True)
TTFT = Column("TTFT 32K", 12, 4, is_number=True)
_COLUMNS = (SIZE, HERE, RUNS, TTFT, DECODE)


def fitting(width: int) -> tuple[Column, ...]:
    """The columns that have room beside the name, in order."""
    shown = list(_COLUMNS)
    while shown and _LEAST_NAME + sum(column.cells + 2 for column in shown) > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    return tuple(shown)


def head_row(width: int) -> Content:
    """The columns' names."""
    return _row("model", {column: (column.head, "") for column in _COLUMNS}, width).stylize(_FAINT)


def model_row(
    listed: Listed, outlook: Outlook | None, transfer: Transfer | None, width: int, *, is_looking: bool
) -> Content:
    """One model; "…" while this machine is still being looked at."""
    cells = {
        SIZE: (figures.size(listed.num_bytes) if listed.num_bytes else "", ""),
        HERE: _here(listed, transfer),
        RUNS: _runs(outlook, is_looking),
        TTFT: (_ttft(outlook), ""),
        DECODE: (_decode(outlook), ""),
    }
    return _row(printable(listed.name), cells, width)


def _row(name: str, cells: dict[Column, tuple[str, str]], width: int) -> Content:
    columns = fitting(width)
    room = max(1, width - sum(column.cells + 2 for column in columns))
    parts: list[tuple[str, str]] = [(_padded(name, room), "")]
    for column in columns:
        text, style = cells[column]
        cut = figures.cut(text, column.cells)
        parts += [("  ", ""), (cut.rjust(column.cells) if column.is_number else cut.ljust(column.cells), style)]
    return Content.assemble(*parts)


def _padded(text: str, room: int) -> str:
    cut = figures.cut(text, room)
    return cut + " " * (room - figures.cells(cut))


def _here(listed: Listed, transfer: Transfer | None) -> tuple[str, str]:
    if transfer and transfer.is_active:
        share = _share(transfer)
        return (f"check {share}", "$primary") if transfer.kind == "check" else (f"coming {share}", "$primary")
    if transfer and transfer.kind == "download" and transfer.state in ("paused", "failed"):
        return transfer.state, "$text-warning" if transfer.state == "paused" else "$text-error"
    if listed.model.state == "incomplete" and listed.entry.size_bytes:
        part = min(0.99, listed.model.bytes_on_disk / listed.entry.size_bytes)
        return f"{figures.percent(part)} of it", ""
    if listed.model.state == "present":
        return "built in" if listed.entry.is_embedded else "yes", "$text-success"
    return ("no" if listed.model.state == "absent" else "in part"), _FAINT


def _share(transfer: Transfer) -> str:
    progress = transfer.progress
    return figures.percent(progress.done_bytes / progress.total_bytes) if progress and progress.total_bytes else "…"


def _runs(outlook: Outlook | None, is_looking: bool) -> tuple[str, str]:
    if outlook is None:
        return "…" if is_looking else "unknown", _FAINT
    if outlook.plan is None:
        return (f"no: {gigabytes(outlook.missing_bytes)} more" if outlook.missing_bytes else "no"), _FAINT
    return outlook.place, ""


def _ttft(outlook: Outlook | None) -> str:
    if outlook is None or outlook.prefill is None:
        return UNKNOWN
    shorter = "" if outlook.prefill.num_tokens >= LONG_PROMPT else f" {kilo(outlook.prefill.num_tokens)}"
    return marked(duration(outlook.prefill.ttft_s), outlook.is_estimate) + shorter


def _decode(outlook: Outlook | None) -> str:
    if outlook is None or outlook.decode is None:
        return UNKNOWN
    return marked(speed(outlook.decode.tok_s), outlook.is_estimate)

"""Lanes: what each device loaded, computed and unloaded in the last seconds, drawn from what happened and nothing else.

A cell is as high as the lane was busy in its part of the time.
"""

from collections.abc import Sequence
from itertools import groupby

from textual.content import Content

from localmoe.events import Lane, Lanes, LaneSpan
from localmoe.tui import figures
from localmoe.tui.printable import printable

_STAGE_CELLS = 9
_FIGURE_CELLS = 11
_COLOURS = {"load": "$primary", "compute": "$accent", "exchange": "$secondary", "unload": "$success"}


def lanes_title(event: Lanes | None, *, is_running: bool) -> str:
    """Such as "Lanes, last 4 s · overlap 97 %"; while nothing runs, final: those before it ended."""
    if event is None:
        return "Lanes"
    when = "last" if is_running else "final"
    overlap = f" · overlap {figures.percent(event.overlap)}" if event.overlap is not None else ""
    return f"Lanes, {when} {event.window_s:.0f} s{overlap}"


def lanes_rows(event: Lanes | None, width: int, *, is_reading: bool) -> Content:
    """For each device a line with its name, then one for each lane, all of at most `width` cells.

    While a prompt `is_reading`, the layer says how far its pass is.
    """
    if event is None or not event.lanes:
        return Content.styled(figures.UNKNOWN, "$foreground 60%")
    rows: list[Content] = []
    for device, lanes in groupby(event.lanes, key=lambda lane: lane.device):
        rows.append(_device_row(device, layer_words(event) if is_reading and not rows else "", width))
        rows += [_lane_row(lane, event.window_s, width) for lane in lanes]
    return Content("\n").join(rows)


def layer_words(event: Lanes) -> str:
    """Such as "layer 41 of 61"; empty where layers are not told."""
    return f"layer {event.layer} of {event.num_layers}" if event.layer is not None else ""


def load_rate(event: Lanes) -> str:
    """Such as "53.1 GB/s", of all devices' loads; empty where nothing was loaded."""
    rates = [lane.rate_bytes_s for lane in event.lanes if lane.stage == "load" and lane.rate_bytes_s]
    return f"{figures.size(round(sum(rates)))}/s" if rates else ""


def busy_shares(spans: Sequence[LaneSpan], window_s: float, cells: int) -> list[float]:
    """Of each of `cells` equal parts of the window, the oldest first, the share in which a span was under way."""
    shares = [0.0] * cells
    cell_s = window_s / cells
    for span in spans:
        start, end = (span.start_s + window_s) / cell_s, (span.end_s + window_s) / cell_s
        density = min(1.0, span.busy_s / (span.end_s - span.start_s)) if span.end_s > span.start_s else 1.0
        for cell in range(max(0, int(start)), min(cells, int(end) + 1)):
            shares[cell] += density * max(0.0, min(end, cell + 1) - max(start, cell))
    return [min(1.0, share) for share in shares]


def _device_row(device: str, words: str, width: int) -> Content:
    name = printable(device)
    return Content.assemble((name.ljust(width - len(words)), "$foreground 60%"), words)


def _lane_row(lane: Lane, window_s: float, width: int) -> Content:
    cells = width - _STAGE_CELLS - _FIGURE_CELLS
    bar = figures.levels(busy_shares(lane.spans, window_s, cells))
    figure = f"{figures.size(round(lane.rate_bytes_s))}/s" if lane.rate_bytes_s else _busy(lane, window_s)
    label = lane.stage.ljust(_STAGE_CELLS)
    return Content.assemble((label, "$foreground 60%"), (bar, _COLOURS[lane.stage]), figure.rjust(_FIGURE_CELLS))


def _busy(lane: Lane, window_s: float) -> str:
    return f"{figures.percent(min(1.0, lane.busy_s / window_s))} busy"

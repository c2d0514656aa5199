"""The experts' heat: which of each layer's experts the last steps chose, a row for a layer."""

from textual.content import Content

from localmoe.events import Heat
from localmoe.tui import figures

_LABEL_CELLS = 5
_MOST_CELLS = 32


def heat_title(event: Heat | None) -> str:
    """Such as "Experts, last 16 steps, by layer"."""
    return f"Experts, last {event.num_steps} steps, by layer" if event else "Experts"


def heat_rows(event: Heat | None, most_rows: int) -> Content:
    """The layers, evenly chosen from the first to the last where they are more than rows; the hottest cell is full."""
    if event is None:
        return Content.styled(figures.UNKNOWN, "$foreground 60%")
    shown = shown_layers(len(event.layers), most_rows)
    hottest = max(max(event.layers[n]) for n in shown) or 1
    return Content("\n").join([_row(event, n, hottest) for n in shown])


def shown_layers(num_layers: int, most_rows: int) -> list[int]:
    """At most `most_rows` of the layers, the first and the last among them."""
    if num_layers <= most_rows:
        return list(range(num_layers))
    return [round(row * (num_layers - 1) / (most_rows - 1)) for row in range(most_rows)]


def _row(event: Heat, n: int, hottest: int) -> Content:
    counts = event.layers[n]
    bars = figures.levels([count / hottest for count in counts])
    wide = "".join(bar * max(1, _MOST_CELLS // len(counts)) for bar in bars)
    return Content.assemble((f"{event.first_layer + n:>3}".ljust(_LABEL_CELLS), "$foreground 60%"), (wide, "$accent"))

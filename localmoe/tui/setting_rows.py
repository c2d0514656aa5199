"""Every setting of the schema with the value in force and where that comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from textual.content import Content

from localmoe.chat.history.parameters import PARAMETERS
from localmoe.engine.request import EngineInfo
from localmoe.settings import RULES, Settings
from localmoe.tui import figures
from localmoe.tui.kept import Kept
from localmoe.tui.printable import printable

AT_ONCE = (*PARAMETERS, "theme")  # the others take an engine that is opened anew
LATER = "from the next start"
_WITHOUT = {
    "seed": "another one each time",
    "max_tokens": "until the context is full",
    "think": "as the model does",
    "context": "as far as memory goes",
    "threads": "one per core",
    "isa": "the best here",
}
_NAME_CELLS, _VALUE_CELLS, _ORIGIN_CELLS = 19, 28, 22
_FAINT = "$foreground 60%"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A line of the table."""

    name: str
    value: str  # in words
    origin: str


def setting_rows(settings: Settings, kept: Kept, info: EngineInfo | None, later: frozenset[str]) -> list[SettingRow]:
    """In the schema's order; `later`: those that were changed since the engine was opened."""
    return [_row(name, settings, kept, info, later) for name in RULES]


def _row(name: str, settings: Settings, kept: Kept, info: EngineInfo | None, later: frozenset[str]) -> SettingRow:
    if name in PARAMETERS:
        value, origin = getattr(kept.settings, name), kept.origin(name)
    else:
        value, origin = getattr(settings, name), settings.said_by(name)
    if name in later:
        return SettingRow(name, _words(name, value), f"{origin}, {LATER}")
    if value is None and (decided := _decided(name, info)) is not None:
        return SettingRow(name, _words(name, decided), "the model" if name in PARAMETERS else "the plan")
    return SettingRow(name, _words(name, value), "default" if value is None else origin)


def _decided(name: str, info: EngineInfo | None) -> Any:
    """What the model, or the plan of the engine that is open, made of a setting that nobody chose; None: unknown."""
    if info is None:
        return None
    of_plan: Mapping[str, Any] = {"context": info.context_limit, "threads": info.num_threads, "isa": info.isa}
    return of_plan.get(name, getattr(info.sampling, name, None))


def _words(name: str, value: Any) -> str:
    if value is None:
        return _WITHOUT.get(name, "the model's own")
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) and name != "seed" else str(value)


def drawn(row: SettingRow, width: int) -> Content:
    """Within `width` cells; where there is little room the origin is cut, then left out."""
    value_cells = min(_VALUE_CELLS, max(16, width - _NAME_CELLS - _ORIGIN_CELLS))
    value = figures.cut(printable(row.value), value_cells - 1)
    padded = value + " " * (value_cells - figures.cells(value))
    room = width - _NAME_CELLS - value_cells
    origin = figures.cut(printable(row.origin), room) if room > 4 else ""
    style = _FAINT if row.origin in ("default", "the plan", "the model") else "$text-accent"
    return Content.assemble(row.name.ljust(_NAME_CELLS), (padded, "bold"), (origin, style))

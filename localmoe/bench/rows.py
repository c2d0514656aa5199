"""Rows and the report that they make."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol


class Listener(Protocol):
    """Hears what goes on, a line at a time."""

    def progress(self, text: str) -> None:
        """What begins now."""
        ...

    def warn(self, text: str) -> None:
        """What a reader of the rows has to know."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `reference` was measured in the same run, or is allowed; `ratio` is value / reference."""

    suite: str
    case: str
    metric: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    isa: str | None = None  # what computed it; None: no kernel did
    against: str | None = None  # what the reference is


def compared(row: Row, reference: float, against: str) -> Row:
    """`row` beside `reference`, in the same unit."""
    return replace(row, reference=reference, ratio=row.value / reference, against=against)


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a run, with what they were measured on. `num_threads` worked on each row that has an isa."""

    machine: dict[str, Any]
    model: str | None
    plan: dict[str, Any] | None
    rows: tuple[Row, ...]
    num_threads: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    def to_table(self) -> str:
        """For people, within 80 columns: what was measured on, then the rows, then what the references are."""
        suite = max((len(row.suite) for row in self.rows), default=8)
        case = max((len(row.case) for row in self.rows), default=18)
        columns = f"{{:<{max(5, suite)}}} {{:<{max(18, case)}}} {{:<14}} {{:>11}} {{:>7}}  {{}}"
        head = columns.format("suite", "case", "value", "reference", "ratio", "kernels")
        marks = _marks(self.rows)
        lines = [self._title()[:80], "", head, *(columns.format(*_cells(row, marks)) for row in self.rows)]
        notes = [f"{mark} {against}" for against, mark in marks.items()]
        return "\n".join(line.rstrip() for line in (*lines, *([""] if notes else []), *notes)) + "\n"

    def _title(self) -> str:
        cpu, cores = self.machine["cpu"]["model"] or "unknown CPU", self.machine["limits"]["usable_cores"]
        parts = [cpu, _counted(cores, "core"), self.model, _counted(self.num_threads, "thread")]
        return " · ".join(part for part in parts if part)


def _marks(rows: tuple[Row, ...]) -> dict[str, str]:
    """A letter for each kind of reference, in the order of the rows."""
    kinds = dict.fromkeys(row.against for row in rows if row.against)
    return {kind: chr(ord("a") + n) for n, kind in enumerate(kinds)}


def _cells(row: Row, marks: dict[str, str]) -> tuple[str, ...]:
    mark = marks.get(row.against or "", " ")
    reference = "" if row.reference is None else f"{_figure(row.reference)} {mark}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.suite, row.case, f"{_figure(row.value)} {row.unit}", reference, ratio, row.isa or ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"


def _figure(value: float) -> str:
    """Three figures or so: 1,212; 48.7; 0.153."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"

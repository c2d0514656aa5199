"""Rows and the report that they make."""

from dataclasses import asdict, dataclass
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
    """One figure. `reference` was measured in the same run; `ratio` is value / reference."""

    suite: str
    case: str
    metric: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    isa: str | None = None  # what computed it; None: no kernel did


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a run, with what they were measured on."""

    machine: dict[str, Any]
    model: str | None
    plan: dict[str, Any] | None
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    def to_table(self) -> str:
        """For people, within 80 columns: what was measured on, then the rows."""
        head = f"{'suite':<9} {'case':<17} {'value':<18} {'reference':>9} {'ratio':>8}  kernels"
        lines = [self._title()[:80], "", head, *map(_line, self.rows)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _title(self) -> str:
        cpu, cores = self.machine["cpu"]["model"] or "unknown CPU", self.machine["limits"]["usable_cores"]
        parts = [
            cpu,
            f"{cores} core{'s' * (cores > 1)}",
            self.model,
            self.plan and f"{self.plan['num_threads']} threads",
        ]
        return " · ".join(part for part in parts if part)


def _line(row: Row) -> str:
    reference = "" if row.reference is None else _figure(row.reference)
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    value = f"{_figure(row.value)} {row.unit}"
    return f"{row.suite:<9} {row.case:<17} {value:<18} {reference:>9} {ratio:>8}  {row.isa or ''}"


def _figure(value: float) -> str:
    """Three figures or so: 1,212; 48.7; 0.153."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"

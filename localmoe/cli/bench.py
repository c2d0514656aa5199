"""`localmoe bench`: figures of this machine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localmoe.cli.streams import Aside, to_stdout
from localmoe.settings import load_settings


def bench(suites: str, flags: Mapping[str, Any], *, as_json: bool, csv: Path | None = None) -> None:
    """Prints the report and adds its rows to `csv`; what is being measured shows on stderr."""
    from localmoe.bench.run import parse_suites, run_suites
    from localmoe.bench.sheet import Sheet

    wanted = parse_suites(suites)
    sheet = Sheet(csv) if csv else None  # refused before minutes of measuring
    report = run_suites(wanted, load_settings(flags), Watcher())
    try:
        if sheet:
            sheet.append(report)
    finally:
        to_stdout(json.dumps(report.to_json()) + "\n" if as_json else report.to_table())


class Watcher:
    """Progress for a terminal, warnings for everybody."""

    def __init__(self) -> None:
        self._aside = Aside()

    def progress(self, text: str) -> None:
        if self._aside.is_terminal:
            self._aside.line(text)

    def warn(self, text: str) -> None:
        self._aside.line(text)

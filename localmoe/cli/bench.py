"""`localmoe bench`: figures of this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.cli.streams import Aside, to_stdout
from localmoe.errors import UsageError
from localmoe.settings import load_settings


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where it is to be measured, and how told."""

    device: str = "host"
    csv: Path | None = None
    json: bool = False
    stream: bool = False
    quiet: bool = False


def bench(suites: str, flags: Mapping[str, Any], wanted: Wanted) -> None:
    """Prints the report and adds its rows to a CSV file; what is being measured shows on stderr."""
    from localmoe.bench.run import parse_device, parse_suites, run_suites
    from localmoe.bench.sheet import Sheet

    if wanted.stream and not wanted.json:
        raise UsageError("--stream belongs to --json", "add --json")
    names, where = parse_suites(suites), parse_device(wanted.device)
    sheet = Sheet(wanted.csv) if wanted.csv else None  # refused before minutes of measuring
    report = run_suites(names, load_settings(flags), Watcher(wanted), where)
    try:
        if sheet:
            sheet.append(report)
    finally:
        to_stdout(json.dumps(report.to_json()) + "\n" if wanted.json else report.to_table())


class Watcher:
    """Progress for a terminal, warnings for everybody who wants to hear them; both as JSON lines where asked for."""

    def __init__(self, wanted: Wanted) -> None:
        self._aside = Aside(is_quiet=wanted.quiet)
        self._wanted = wanted

    def progress(self, text: str) -> None:
        self._print("Progress", text)
        if self._aside.is_terminal:
            self._aside.line(text)

    def warn(self, text: str) -> None:
        self._print("Warning", text)
        if not self._wanted.quiet:
            self._aside.line(text)

    def _print(self, event: str, text: str) -> None:
        if self._wanted.stream:
            to_stdout(json.dumps({"event": event, "text": text}) + "\n")

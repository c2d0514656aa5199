"""`localmoe bench`: figures of this machine."""

import json
from collections.abc import Mapping
from typing import Any

from localmoe.cli.streams import Aside, to_stdout
from localmoe.settings import load_settings


def bench(suites: str, flags: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the report; what is being measured shows on stderr."""
    from localmoe.bench.run import parse_suites, run_suites

    names, settings, aside = parse_suites(suites), load_settings(flags), Aside()
    report = run_suites(names, settings, aside.line if aside.is_terminal else lambda text: None)
    to_stdout(json.dumps(report.to_json()) + "\n" if as_json else report.to_table())

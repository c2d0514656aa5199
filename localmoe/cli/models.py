"""`localmoe models`: what is known, and what is here."""

import json
from typing import Any

from localmoe.cli.streams import to_stdout
from localmoe.hub.catalog import LocalModel, local_models
from localmoe.tui.figures import percent, size

_ROW = "{:<26}  {:<21}  {:>8}  {}"


def models(*, as_json: bool) -> None:
    """Prints the catalogue with what is on disk of it."""
    found = local_models()
    to_stdout(json.dumps({"models": [model_object(m) for m in found]}) + "\n" if as_json else table(found))


def model_object(model: LocalModel) -> dict[str, Any]:
    """One model as `--json` has it."""
    entry = model.entry
    return {
        "name": entry.name,
        "title": entry.title,
        "repo": entry.repo,
        "revision": entry.revision,
        "format": entry.format,
        "size_bytes": entry.size_bytes,
        "params": entry.params,
        "active_params": entry.active_params,
        "context": entry.context,
        "note": entry.note,
        "present": model.state == "present",
        "state": model.state,
        "path": str(model.path) if model.path else None,
        "bytes_on_disk": model.bytes_on_disk,
    }


def table(found: list[LocalModel]) -> str:
    """For people, within 80 columns."""
    rows = [_ROW.format("model", "parameters", "size", "here")]
    rows += [_ROW.format(m.entry.name, _parameters(m), size(m.entry.size_bytes), _here(m)) for m in found]
    absent = [m.entry for m in found if m.state == "absent"]
    smallest = min(absent, key=lambda entry: entry.size_bytes, default=None)
    hint = [f"\n{smallest.fetch_command}\nfetches the smallest one that is not here."] if smallest else []
    return "\n".join(row.rstrip() for row in [*rows, *hint]) + "\n"


def _parameters(model: LocalModel) -> str:
    return f"{_count(model.entry.params)}, {_count(model.entry.active_params)} active"


def _count(number: int) -> str:
    """671000000000 -> "671 B"."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{number:,}"


def _here(model: LocalModel) -> str:
    if model.state == "incomplete" and not model.entry.is_embedded:
        return f"{percent(min(0.99, model.bytes_on_disk / model.entry.size_bytes))} of it"
    if model.state != "present":
        return "no"
    return "built in" if model.entry.is_embedded else "yes"

"""`localmoe models`: what is known, and what is here."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from localmoe.cli.streams import to_stdout
from localmoe.hub.catalog import LocalModel, local_models, other_models
from localmoe.hub.hf_cache import SHORT_COMMIT, Revision, State, revisions_of
from localmoe.tui.figures import percent, size
from localmoe.tui.model_words import parameters

_NAME = 26  # cells
_ROW = "{:<26}  {:<21}  {:>8}  {}"
_YES: dict[State, str] = {"present": "yes", "incomplete": "in part", "absent": "no"}


def models(*, as_json: bool) -> None:
    """Prints the catalogue, the user's own models, and what else is in the cache."""
    found, others = local_models(), other_models()
    if as_json:
        listed = [model_object(m) for m in found] + [model_object(m) | {"known": False} for m in others]
        to_stdout(json.dumps({"models": listed}) + "\n")
    else:
        to_stdout(table(found, others))


def model_object(model: LocalModel) -> dict[str, Any]:
    """One model as `--json` has it; null is unknown."""
    entry = model.entry
    return {
        "name": entry.name,
        "title": entry.title,
        "repo": entry.repo,
        "revision": entry.revision,
        "format": entry.format or None,
        "size_bytes": entry.size_bytes or None,
        "params": entry.params or None,
        "active_params": entry.active_params or None,
        "context": entry.context or None,
        "note": entry.note,
        "known": True,
        "present": model.state == "present",
        "state": model.state,
        "path": str(model.path) if model.path else None,
        "bytes_on_disk": model.bytes_on_disk,
        "revisions": [asdict(revision) for revision in _revisions(model)],
    }


def table(found: list[LocalModel], others: Sequence[LocalModel] = ()) -> str:
    """For people, within 80 columns."""
    rows = [_ROW.format("model", "parameters", "size", "here")]
    for model in found:
        rows += _rows(model)
    if others:
        rows += ["", "also in the Hugging Face cache"]
        for model in others:
            rows += _rows(model)
    absent = [m.entry for m in found if m.state == "absent" and m.entry.size_bytes and m.entry.repo]
    smallest = min(absent, key=lambda entry: entry.size_bytes, default=None)
    hint = [f"\n{smallest.fetch_command}\nfetches the smallest one that is not here."] if smallest else []
    return "\n".join(row.rstrip() for row in [*rows, *hint]) + "\n"


def _rows(model: LocalModel) -> Iterator[str]:
    """The model; where several revisions of it are here, a line for each of them."""
    num_bytes = model.entry.size_bytes or model.bytes_on_disk
    name, about = model.entry.name, (parameters(model.entry), size(num_bytes) if num_bytes else "", _here(model))
    if len(name) > _NAME:
        yield name
        name = ""
    yield _ROW.format(name, *about)
    revisions = _revisions(model)
    if len(revisions) > 1:
        for one in revisions:
            names = f" {', '.join(one.names)}" if one.names else ""
            yield _ROW.format(f"  @{one.commit[:SHORT_COMMIT]}{names}", "", size(one.num_bytes), _YES[one.state])


def _revisions(model: LocalModel) -> list[Revision]:
    return revisions_of(model.entry.repo) if model.entry.repo else []


def _here(model: LocalModel) -> str:
    if model.state == "incomplete" and not model.entry.is_embedded and model.entry.size_bytes:
        return f"{percent(min(0.99, model.bytes_on_disk / model.entry.size_bytes))} of it"
    return "built in" if model.state == "present" and model.entry.is_embedded else _YES[model.state]

"""What a command's MODEL means where files are fetched, checked or removed: a repository, or a folder."""

from dataclasses import dataclass
from pathlib import Path

from localmoe.errors import ModelNotFoundError, UsageError
from localmoe.hub.catalog import CatalogModel, entry_of, is_repository, load_catalog, resolve, split_revision
from localmoe.hub.json_file import shown


@dataclass(frozen=True, slots=True)
class Repository:
    """On the hub."""

    name: str  # as the user calls it, `@revision` included
    repository: str
    revision: str
    is_pinned: bool  # the user gave the revision
    entry: CatalogModel | None


def repository_of(model: str) -> Repository:
    """UsageError for what is not on the hub, ModelNotFoundError for what is no name."""
    name, revision = split_revision(model)
    entry = entry_of(name)
    if entry and entry.repo:
        called = f"{entry.name}@{revision}" if revision else entry.name
        return Repository(called, entry.repo, revision or entry.revision, bool(revision), entry)
    if entry:
        what = "comes with localmoe" if entry.is_embedded else f"is the folder {shown(entry.folder)}"
        raise UsageError(f"{entry.name} {what}: there is nothing on the hub to it", "name another model")
    if Path(model).expanduser().is_dir():
        raise UsageError(f"{shown(model)} is a folder, not a model on the hub", "give a name or org/repo")
    if is_repository(name):
        return Repository(model, name, revision or "main", bool(revision), None)
    resolve(model)  # says what is close to it
    raise ModelNotFoundError(f"there is no model named '{shown(model)}'.", f"known: {', '.join(load_catalog())}")

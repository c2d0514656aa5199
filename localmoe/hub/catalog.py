"""Models by name: what localmoe knows of them, and where they are on this machine."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import localmoe
from localmoe.errors import ModelNotFoundError
from localmoe.hub.amount import amount
from localmoe.hub.hf_cache import (
    State,
    bytes_on_disk,
    cache_folder,
    cached_repositories,
    repository_folder,
    snapshot,
    state_of,
)
from localmoe.hub.json_file import read_json, shown
from localmoe.hub.user_models import user_models

__all__ = [
    "CatalogModel",
    "LocalModel",
    "Source",
    "State",
    "data_path",
    "entry_of",
    "folder_of",
    "is_repository",
    "load_catalog",
    "local_models",
    "other_models",
    "resolve",
    "split_revision",
]

_DATA = {"models.toml": "models.toml", "guide": "assets/guide"}  # installed name -> place in a checkout


@dataclass(frozen=True)
class CatalogModel:
    """One entry of models.toml, which explains the fields; of a user's own, any but the name may be empty or 0."""

    name: str
    title: str
    repo: str  # on the hub, `org/name`
    revision: str = "main"
    format: Literal["fp8", "bf16", ""] = ""
    size_bytes: int = 0
    params: int = 0
    active_params: int = 0
    context: int = 0
    template: str = ""  # empty: guessed by the model's own
    temperature: float | None = None
    top_p: float | None = None
    shape: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # empty: config.json is here
    note: str = ""
    folder: str = ""  # of a user's model that is not in the cache

    @property
    def is_embedded(self) -> bool:
        """Comes with localmoe."""
        return not self.repo and not self.folder

    @property
    def config(self) -> Mapping[str, Any]:
        """What its config.json says of sizes, without a download; for `read_config`. Token ids are not in it.

        Empty for a user's model of which that is not known before it is here.
        """
        if self.shape:
            return self.shape
        folder = folder_of(self)
        return read_json(folder / "config.json") if folder and (folder / "config.json").is_file() else {}

    @property
    def fetch_command(self) -> str:
        """The shell command that downloads it; "" for one that is not on the hub."""
        return f"localmoe pull {self.name}" if self.repo else ""


@dataclass(frozen=True)
class Source:
    """A model to open."""

    name: str
    folder: Path
    entry: CatalogModel | None = None  # None: a model that the catalogue does not know


@dataclass(frozen=True)
class LocalModel:
    """What this machine has of a catalogue entry."""

    entry: CatalogModel
    state: State
    path: Path | None  # None when absent
    bytes_on_disk: int


def data_path(name: str) -> Path:
    """Data that comes with localmoe, "models.toml" or "guide": as installed, or in the checkout."""
    package = Path(localmoe.__file__).resolve().parent
    for path in (package / "_data" / name, package.parent / _DATA[name]):
        if path.exists():
            return path
    raise ModelNotFoundError(
        f"{name} is missing from this installation of localmoe.", "install it again: `pip install .` in a checkout."
    )


def load_catalog() -> dict[str, CatalogModel]:
    """Every known model by name, in the catalogue's order, then the user's own. UsageError for a wrong models.toml."""
    tables = tomllib.loads(data_path("models.toml").read_text(encoding="utf-8"))
    shapes = {"": {}, **tables.pop("shapes")}
    own = user_models([name for name in shapes if name], tables)
    return {name: _entry(name, table, shapes) for name, table in (tables | own).items()}


def _entry(name: str, table: Mapping[str, Any], shapes: Mapping[str, Any]) -> CatalogModel:
    base = {"title": name, "repo": ""}
    own = {"name": name, "shape": shapes[table.get("shape", "")]}
    return CatalogModel(**{**base, **table, **own})


def local_models() -> list[LocalModel]:
    """Each catalogue entry with what is on disk of it."""
    return [_on_disk(entry) for entry in load_catalog().values()]


def other_models() -> list[LocalModel]:
    """What the cache has beside the catalogue, whoever fetched it; whether it runs, opening it tells."""
    known = {entry.repo.lower() for entry in load_catalog().values()}
    others = [repository for repository in cached_repositories() if repository.lower() not in known]
    return [_on_disk(CatalogModel(repository, repository, repository)) for repository in others]


def entry_of(model: str) -> CatalogModel | None:
    """The catalogue's entry of that name or repository, in upper or lower case; None: it has none."""
    catalog = load_catalog()
    by_repository = {entry.repo.lower(): entry for entry in reversed(catalog.values()) if entry.repo}
    return catalog.get(model.lower()) or by_repository.get(model.lower())


def split_revision(model: str) -> tuple[str, str]:
    """Of `name@revision` or `org/name@revision` both; the revision is "" where none is given."""
    name, _, revision = model.partition("@")
    return (name, revision) if name and revision else (model, "")


def resolve(model: str | Path) -> Source:
    """A catalogue name, a folder or an `org/repo` of the Hugging Face cache, in this order; `@revision` may follow.

    ModelNotFoundError when it is nowhere on this machine. A folder that is found may still be incomplete:
    opening the checkpoint tells.
    """
    catalog = load_catalog()
    text = str(model)
    if entry := catalog.get(text.lower()):
        return Source(entry.name, _require_folder(entry), entry)
    path = Path(text)
    if text and _is_path(path):
        path = path.expanduser()
        return Source(path.resolve().name or text, path)
    name, revision = split_revision(text)
    entry = entry_of(name)
    if entry and entry.repo:
        wanted = replace(entry, revision=revision) if revision else entry
        return Source(f"{entry.name}@{revision}" if revision else entry.name, _require_folder(wanted), wanted)
    if is_repository(name):
        return _resolve_repository(name, revision)
    raise _unknown(text, catalog)


def is_repository(text: str) -> bool:
    """Whether `text` has the form of `org/repo`."""
    return text.count("/") == 1 and all(part and not part.startswith((".", "~")) for part in text.split("/"))


def folder_of(entry: CatalogModel) -> Path | None:
    """Where it is, in full or in part; None: nowhere."""
    if entry.is_embedded:
        return data_path(entry.name)
    if entry.folder:
        return Path(entry.folder).expanduser()
    return snapshot(entry.repo, entry.revision)


def _require_folder(entry: CatalogModel) -> Path:
    folder = folder_of(entry)
    if folder is None:
        size = f" ({amount(entry.size_bytes)})" if entry.size_bytes else ""
        at = "" if entry.revision == "main" else f" at revision {shown(entry.revision)}"
        raise ModelNotFoundError(
            f"{entry.name} is not on this machine{at} (looked in {shown(cache_folder())}).",
            f"{entry.fetch_command}{size} fetches it.",
        )
    return folder


def _resolve_repository(repository: str, revision: str) -> Source:
    if folder := snapshot(repository, revision or "main"):
        return Source(f"{repository}@{revision}" if revision else repository, folder)
    name = f"{repository}@{revision}" if revision else repository
    raise ModelNotFoundError(
        f"{shown(name)} is neither a folder nor in the Hugging Face cache ({shown(cache_folder())}).",
        f"localmoe pull {shown(name)} fetches it if the hub has it; `localmoe models` lists what is known to run.",
    )


def _unknown(text: str, catalog: dict[str, CatalogModel]) -> ModelNotFoundError:
    if "/" in text or text.startswith(("~", ".")):
        return ModelNotFoundError(f"there is no folder {shown(text)}.", "check the path, or see `localmoe models`.")
    close = get_close_matches(text.lower(), catalog, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return ModelNotFoundError(
        f"there is no model or folder named '{shown(text)}'.", f"{hint}`localmoe models` lists the names."
    )


def _is_path(path: Path) -> bool:
    try:
        path = path.expanduser()
        if path.is_file():
            raise ModelNotFoundError(
                f"{shown(path)} is a file; a model is a folder with config.json and *.safetensors.",
                f"give the folder instead: {shown(path.parent)}",
            )
        return path.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a home that does not exist: no path
        return False


def _on_disk(entry: CatalogModel) -> LocalModel:
    folder = folder_of(entry)
    if folder is None:
        begun = repository_folder(entry.repo) / "blobs"
        partial = bytes_on_disk(begun) if begun.is_dir() else 0
        return LocalModel(entry, "incomplete" if partial else "absent", begun.parent if partial else None, partial)
    is_there = folder.is_dir()
    return LocalModel(entry, state_of(folder), folder if is_there else None, bytes_on_disk(folder) if is_there else 0)

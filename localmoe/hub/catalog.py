"""Models by name: what localmoe knows of them, and where they are on this machine."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import localmoe
from localmoe.errors import ModelNotFoundError
from localmoe.hub.hf_cache import State, bytes_on_disk, cache_folder, repository_folder, snapshot, state_of
from localmoe.hub.json_file import read_json, shown

__all__ = [
    "CatalogModel",
    "LocalModel",
    "Source",
    "State",
    "data_path",
    "entry_of",
    "load_catalog",
    "local_models",
    "resolve",
]

_DATA = {"models.toml": "models.toml", "guide": "assets/guide"}  # installed name -> place in a checkout


@dataclass(frozen=True)
class CatalogModel:
    """One entry of models.toml, which explains the fields."""

    name: str
    title: str
    repo: str  # on the hub, `org/name`
    revision: str
    format: Literal["fp8", "bf16"]
    size_bytes: int
    params: int
    active_params: int
    context: int
    template: str
    temperature: float
    top_p: float
    shape: Mapping[str, Any] = field(repr=False, compare=False)  # empty: its config.json is here
    note: str = ""

    @property
    def is_embedded(self) -> bool:
        """Comes with localmoe."""
        return not self.repo

    @property
    def config(self) -> Mapping[str, Any]:
        """What its config.json says of sizes, without a download; for `read_config`. Token ids are not in it."""
        return read_json(data_path(self.name) / "config.json") if self.is_embedded else self.shape

    @property
    def fetch_command(self) -> str:
        """The shell command that downloads it; "" for the embedded one."""
        if self.is_embedded:
            return ""
        revision = "" if self.revision == "main" else f" --revision {self.revision}"
        return f"hf download {self.repo}{revision}"


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
    """Every known model by name, in the catalogue's order."""
    tables = tomllib.loads(data_path("models.toml").read_text(encoding="utf-8"))
    shapes = {"": {}, **tables.pop("shapes")}
    return {
        name: CatalogModel(**table | {"name": name, "shape": shapes[table["shape"]]}) for name, table in tables.items()
    }


def local_models() -> list[LocalModel]:
    """Each catalogue entry with what is on disk of it."""
    return [_on_disk(entry) for entry in load_catalog().values()]


def entry_of(model: str) -> CatalogModel | None:
    """The catalogue's entry of that name or repository, in upper or lower case; None: it has none."""
    catalog = load_catalog()
    by_repository = {entry.repo.lower(): entry for entry in catalog.values() if not entry.is_embedded}
    return catalog.get(model.lower()) or by_repository.get(model.lower())


def resolve(model: str | Path) -> Source:
    """A catalogue name, a folder or an `org/repo` of the Hugging Face cache, in this order.

    ModelNotFoundError when it is nowhere on this machine. A folder that is found may still be incomplete:
    opening the checkpoint tells.
    """
    catalog = load_catalog()
    text = str(model)
    if entry := catalog.get(text.lower()):
        return Source(entry.name, _folder_of(entry), entry)
    path = Path(text)
    if text and _is_path(path):
        path = path.expanduser()
        return Source(path.resolve().name or text, path)
    if is_repository(text):
        return _resolve_repository(text)
    raise _unknown(text, catalog)


def is_repository(text: str) -> bool:
    """Whether `text` has the form of `org/repo`."""
    return text.count("/") == 1 and all(part and not part.startswith((".", "~")) for part in text.split("/"))


def _folder_of(entry: CatalogModel) -> Path:
    if entry.is_embedded:
        return data_path(entry.name)
    folder = snapshot(entry.repo, entry.revision)
    if folder is None:
        raise ModelNotFoundError(
            f"{entry.name} is not on this machine (looked in {shown(cache_folder())}).",
            f"{entry.fetch_command} ({_gigabytes(entry.size_bytes)}) fetches it.",
        )
    return folder


def _resolve_repository(repository: str) -> Source:
    if entry := entry_of(repository):
        return Source(entry.name, _folder_of(entry), entry)
    if folder := snapshot(repository, "main"):
        return Source(repository, folder)
    raise ModelNotFoundError(
        f"{shown(repository)} is neither a folder nor in the Hugging Face cache ({shown(cache_folder())}).",
        f"hf download {shown(repository)} fetches it if the hub has it; `localmoe models` lists what is known to run.",
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
    folder = data_path(entry.name) if entry.is_embedded else snapshot(entry.repo, entry.revision)
    if folder is None:
        begun = repository_folder(entry.repo) / "blobs"
        partial = bytes_on_disk(begun) if begun.is_dir() else 0
        return LocalModel(entry, "incomplete" if partial else "absent", begun.parent if partial else None, partial)
    return LocalModel(entry, state_of(folder), folder, bytes_on_disk(folder))


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB"

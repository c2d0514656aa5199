"""A model's small files, which say what it is before its weights are here: config.json and the index.

From the model's folder, from the catalogue, or from the hub: then into a cache of their own, because in Hugging
Face's they would look like a model of which the weights are missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError, LocalmoeError, ModelNotFoundError
from localmoe.hub.catalog import CatalogModel, entry_of, is_repository, resolve, split_revision
from localmoe.hub.checkpoint import INDEX
from localmoe.hub.client import endpoint, quieten, refused
from localmoe.hub.hf_cache import State, state_of
from localmoe.hub.json_file import read_json, shown
from localmoe.settings import cache_dir

CONFIG = "config.json"
FILES = (CONFIG, INDEX, "generation_config.json")


@dataclass(frozen=True)
class SmallFiles:
    """What is known of a model without reading a weight."""

    name: str
    config: Mapping[str, Any]  # as config.json has it
    source: str  # where that comes from, for people
    state: State  # of the weights on this machine
    total_bytes: int | None  # of all tensors, as the index says; None without one
    entry: CatalogModel | None  # None: a model that the catalogue does not know


def find_small_files(model: str | Path) -> SmallFiles:
    """Of a catalogue name, a folder or an `org/repo`; only an `org/repo` that is not on this machine is asked for.

    ModelNotFoundError when there is no such name or folder, CheckpointError for files that are damaged, HubError when
    the hub does not give them.
    """
    entry = entry_of(str(model))
    try:
        found = resolve(model)
    except ModelNotFoundError:
        if entry and entry.shape:
            return _from_catalog(entry)
        repository, revision = split_revision(str(model))
        if entry and entry.repo:
            repository, revision = entry.repo, entry.revision
        elif not is_repository(repository):
            raise
        folder = fetch_small_files(repository, revision or "main")
        return _from_folder(str(model), folder, f"{CONFIG} of {shown(model)} on the hub", "absent", entry)
    if entry and entry.shape and not (found.folder / CONFIG).is_file():  # a download that has just begun
        return _from_catalog(entry)
    return _from_folder(found.name, found.folder, shown(found.folder / CONFIG), state_of(found.folder), entry)


def fetch_small_files(repository: str, revision: str = "main") -> Path:
    """The folder with config.json of `org/name`, its index and generation_config.json where it has them.

    What was fetched before is asked for again only as to whether it changed, and serves where the hub does not answer.
    """
    from huggingface_hub import errors

    quieten()
    try:
        _ask(repository, revision)
        folders = [_fetch(repository, name, revision) for name in FILES]
        return next(folder for folder in folders if folder)
    except errors.HFValidationError as error:
        raise ModelNotFoundError(
            f"{shown(repository)} is neither a folder nor the name of a repository.", "see `localmoe models`."
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise CheckpointError(
            f"{shown(repository)} has no config.json on the hub.",
            "choose a repository with the original weights; GGUF is not read. `localmoe models` lists what runs.",
        ) from error
    except (errors.HTTPError, OSError, ValueError) as error:
        if before := _fetched_before(repository, revision):
            return before
        raise _refused(repository, revision, error) from error


def index_bytes(folder: Path) -> int | None:
    """Bytes of all tensors, as the index in `folder` says; None without an index or where it does not."""
    if not (folder / INDEX).is_file():
        return None
    metadata = read_json(folder / INDEX).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(total) if isinstance(total, int | float) and not isinstance(total, bool) and total > 0 else None


def _from_catalog(entry: CatalogModel) -> SmallFiles:
    return SmallFiles(entry.name, entry.config, "the catalogue", "absent", None, entry)


def _from_folder(name: str, folder: Path, source: str, state: State, entry: CatalogModel | None) -> SmallFiles:
    return SmallFiles(name, read_json(folder / CONFIG), source, state, index_bytes(folder), entry)


def _ask(repository: str, revision: str) -> None:
    """Whether the hub gives config.json, asked once: the client's download asks a silent hub for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(repository, CONFIG, revision=revision, endpoint=endpoint()))


def _fetch(repository: str, name: str, revision: str) -> Path | None:
    """The folder that `name` was put into; None when the repository has no such file, and needs none."""
    from huggingface_hub import errors, hf_hub_download

    try:
        file = hf_hub_download(repository, name, revision=revision, cache_dir=_cache(), endpoint=endpoint())
    except errors.RemoteEntryNotFoundError:
        if name == CONFIG:
            raise
        return None
    return Path(file).parent


def _fetched_before(repository: str, revision: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, CONFIG, cache_dir=_cache(), revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def _refused(repository: str, revision: str, error: Exception) -> LocalmoeError:
    if isinstance(error, OSError) and isinstance(error.filename, str):
        hint = "make room there, or set XDG_CACHE_HOME"
        return LocalmoeError(f"{shown(error.filename)} cannot be written: {error.strerror}.", hint)
    return refused(repository, revision, error)


def _cache() -> Path:
    return cache_dir() / "hub"

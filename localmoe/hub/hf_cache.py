"""The Hugging Face cache on this machine, read without huggingface_hub (its import takes longer than all of this).

models--org--name/
    refs/<revision>         a file that holds a commit
    snapshots/<commit>/     the model's folder: links into blobs/
    blobs/                  the bytes; a download under way ends in .incomplete
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localmoe.errors import CheckpointError
from localmoe.hub.json_file import read_json
from localmoe.hub.layout import INDEX, SINGLE

SHORT_COMMIT = 7  # characters, as git abbreviates

State = Literal["absent", "incomplete", "present"]


def cache_folder() -> Path:
    """Where `hf download` puts models: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(name):
            return _expanded(value)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def repository_folder(repository: str) -> Path:
    """Where the cache keeps `org/name`, there or not."""
    return cache_folder() / f"models--{repository.replace('/', '--')}"


def snapshot(repository: str, revision: str) -> Path | None:
    """The model's folder at `revision`: a branch, a tag, or a commit or its beginning.

    For `main` also the only one there is, when no ref names it.
    """
    folder = repository_folder(repository)
    with suppress(OSError, ValueError):
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
        if commit and "/" not in commit and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    found = _folders(folder / "snapshots")
    named = [path for path in found if path.name == revision]
    if len(revision) >= SHORT_COMMIT and not named:
        named = [path for path in found if path.name.startswith(revision)]
    if not named and revision == "main":
        named = found
    return named[0] if len(named) == 1 else None


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of a repository that is here, in full or in part."""

    commit: str
    names: tuple[str, ...]  # the branches and tags that mean it
    state: State
    num_bytes: int


def revisions_of(repository: str) -> list[Revision]:
    """All that are here side by side, in the order of their commits."""
    folder = repository_folder(repository)
    refs = {str(path.relative_to(folder / "refs")): _text(path) for path in _files(folder / "refs")}
    return [
        Revision(
            path.name,
            tuple(sorted(name for name, commit in refs.items() if commit == path.name)),
            state_of(path),
            sum(_size(file) for file in path.iterdir()),
        )
        for path in sorted(_folders(folder / "snapshots"))
    ]


def cached_repositories() -> list[str]:
    """The `org/name` of every model in the cache that has a config and weights in safetensors, or has begun to."""
    found = []
    for folder in sorted(cache_folder().glob("models--*--*")):
        snapshots = _folders(folder / "snapshots")
        if any((path / "config.json").is_file() and _has_safetensors(path) for path in snapshots):
            found.append(folder.name.removeprefix("models--").replace("--", "/", 1))
    return found


def state_of(folder: Path | None) -> State:
    """Whether a model's folder has its config and every file that its index names."""
    if folder is None or not folder.is_dir():
        return "absent"
    return "present" if (folder / "config.json").is_file() and _has_weights(folder) else "incomplete"


def bytes_on_disk(folder: Path) -> int:
    """Bytes of the model in `folder`; of a snapshot also those of a download under way."""
    partial = folder.parent.parent / "blobs"
    waiting = partial.glob("*.incomplete") if folder.parent.name == "snapshots" else iter(())
    return sum(_size(path) for path in (*folder.iterdir(), *waiting))


def _has_weights(folder: Path) -> bool:
    if not (folder / INDEX).is_file():
        return (folder / SINGLE).is_file()
    try:
        weight_map = read_json(folder / INDEX).get("weight_map")
    except CheckpointError:
        return False
    files = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
    return bool(files) and files <= set(_names(folder))


def _names(folder: Path) -> Iterator[str]:
    """Files below `folder` that are there, links followed."""
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _has_safetensors(folder: Path) -> bool:
    return (folder / INDEX).is_file() or next(folder.glob("*.safetensors"), None) is not None


def _files(parent: Path) -> list[Path]:
    return [path for path in parent.rglob("*") if path.is_file()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _folders(parent: Path) -> list[Path]:
    try:
        return [path for path in parent.iterdir() if path.is_dir()]
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()

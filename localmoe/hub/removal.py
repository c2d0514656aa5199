"""Removing a model from the Hugging Face cache: first exactly what would go, then just that."""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.errors import LocalmoeError, ModelNotFoundError
from localmoe.hub.hf_cache import cache_folder, repository_folder, snapshot
from localmoe.hub.json_file import shown


@dataclass(frozen=True)
class Removal:
    """What goes. A blob that another revision or, in the cache's shared store, another model uses stays."""

    repository: str
    commits: tuple[str, ...]  # the revisions that go; empty: only what a pull has begun
    kept: tuple[str, ...]  # those that stay
    num_bytes: int  # freed
    strategy: Any = None  # huggingface_hub's, for the revisions

    @property
    def folder(self) -> Path:
        """The repository's place in the cache."""
        return repository_folder(self.repository)


def plan_removal(repository: str, revision: str | None) -> Removal:
    """Of one revision, or of all with None. ModelNotFoundError when nothing of it is here."""
    folder = repository_folder(repository)
    commits = _commits(folder)
    if revision is not None:
        found = snapshot(repository, revision)
        if found is None or (found.name != revision and not _is_ref_to(folder, revision, found.name)):
            raise ModelNotFoundError(
                f"{shown(repository)} is not here at revision {shown(revision)}.",
                f"here are: {', '.join(commits) or 'none'}.",
            )
        going: tuple[str, ...] = (found.name,)
    else:
        going = commits
    kept = tuple(commit for commit in commits if commit not in going)
    if not going and not folder.is_dir():
        raise ModelNotFoundError(f"nothing of {shown(repository)} is in the cache ({shown(cache_folder())}).", _LIST)
    strategy = _strategy(repository, going)
    return Removal(repository, going, kept, _freed_bytes(folder, strategy, is_all=not kept), strategy)


def remove(removal: Removal) -> None:
    """Does it. LocalmoeError when the model is just being pulled, or where the system refuses."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock

    lock = cache_folder() / ".locks" / removal.folder.name / "localmoe.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock, timeout=0.1):
            _remove(removal)
    except Timeout as error:
        raise LocalmoeError(
            f"{removal.repository} is just being pulled.", "stop that first, then remove it."
        ) from error
    except OSError as error:
        raise LocalmoeError(f"{shown(error.filename)} cannot be removed: {error.strerror}.", _CHECK) from error


def _remove(removal: Removal) -> None:
    if removal.strategy is not None:
        removal.strategy.execute()
    if not removal.kept:
        if removal.folder.is_dir():
            shutil.rmtree(removal.folder)
    elif left := [commit for commit in removal.commits if (removal.folder / "snapshots" / commit).exists()]:
        raise LocalmoeError(f"revision {left[0]} of {shown(removal.repository)} could not be removed.", _CHECK)


def _strategy(repository: str, commits: tuple[str, ...]) -> Any:
    """The hub client's plan, which knows its shared store of blobs; None for a repository that it cannot read."""
    from huggingface_hub import scan_cache_dir

    from localmoe.hub.client import quieten

    quieten()
    found = scan_cache_dir(cache_folder()) if commits else None
    names = {repo.repo_id for repo in found.repos if repo.repo_type == "model"} if found else set()
    return found.delete_revisions(*commits) if found and repository in names else None


def _commits(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(path.name for path in (folder / "snapshots").iterdir() if path.is_dir()))
    except OSError:
        return ()


def _is_ref_to(folder: Path, revision: str, commit: str) -> bool:
    try:
        return (folder / "refs" / revision).read_text(encoding="utf-8").strip() == commit
    except (OSError, ValueError):
        return False


def _freed_bytes(folder: Path, strategy: Any, *, is_all: bool) -> int:
    """The client counts what revisions refer to, its shared store included; a whole folder holds parts as well."""
    referred: int = strategy.expected_freed_size if strategy else 0
    if not is_all:
        return referred + sum(map(_size, strategy.refs))
    blobs = {path.parent / path.readlink() for path in (folder / "snapshots").rglob("*") if path.is_symlink()}
    own = sum(_size(Path(blob)) for blob in {os.path.normpath(blob) for blob in blobs})
    copies = sum(_size(path) for path in (folder / "snapshots").rglob("*"))
    shared = max(0, referred - own - copies)
    return shared + sum(_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0


_LIST = "`localmoe models` lists what is here."
_CHECK = "check who owns the cache, and whether the disk is read-only."

"""A repository's place in the Hugging Face cache: blobs, links, refs and locks, as `hf download` makes them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Flag

from localmoe.errors import CancelledError
from localmoe.hub.download.listing import HubFile, Listing
from localmoe.hub.download.part import cannot_write
from localmoe.hub.hf_cache import cache_folder, repository_folder

_LOCK_STEP_S = 0.2


class Place:
    """Where one commit of a repository goes."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.repository = repository_folder(listing.repository)
        self.folder = self.repository / "snapshots" / listing.commit

    def blob(self, file: HubFile) -> Path:
        """What `file` becomes, there or not."""
        return self.repository / "blobs" / file.digest

    def link(self, file: HubFile) -> Path:
        """Where it is found under its name."""
        return self.folder / file.path

    def has(self, file: HubFile) -> bool:
        """Whether all its bytes are here, linked or not."""
        return any(_size(path) == file.size for path in (self.blob(file), self._own_copy(file)) if path)

    def make(self) -> None:
        """The folders, and a ref where there is none: a pull that was stopped is found again under its revision."""
        try:
            for folder in (self.repository / "blobs", self.folder):
                folder.mkdir(parents=True, exist_ok=True)
            if not self._known_commit():
                self.name_revision()
        except OSError as error:
            raise cannot_write(self.folder, error) from error

    def name_revision(self) -> None:
        """Makes the revision mean this commit. With an older one here, this comes last: until then that one runs."""
        revision, commit = self._listing.revision, self._listing.commit
        if revision == commit:
            return
        ref = self.repository / "refs" / revision
        try:
            ref.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.repository / "ref.new"  # not in refs/: whatever is there is a revision
            fresh.write_text(commit, encoding="ascii")
            fresh.replace(ref)
        except OSError as error:
            raise cannot_write(ref, error) from error

    def put_link(self, file: HubFile) -> None:
        """Makes `file` appear under its name; the blob itself moves there where links are not possible."""
        blob, link = self.blob(file), self.link(file)
        if not blob.exists() or (link.is_symlink() and link.exists() and link.samefile(blob)):
            return
        fresh = blob.with_name(f"{blob.name}.link")  # one name: what a kill leaves is used up by the next pull
        try:
            fresh.unlink(missing_ok=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                fresh.symlink_to(os.path.relpath(blob, link.parent))
            except OSError:
                blob.replace(link)
            else:
                fresh.replace(link)
        except OSError as error:
            raise cannot_write(link, error) from error

    @contextmanager
    def locked(self, name: str, cancelled: Flag, on_wait: Callable[[], None]) -> Iterator[None]:
        """Holds a lock of this repository, `hf download`'s own for a blob; `on_wait` is told once if another has it."""
        from filelock import Timeout
        from huggingface_hub.utils import WeakFileLock

        path = cache_folder() / ".locks" / self.repository.name / f"{name}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        told = False
        while True:
            lock = WeakFileLock(path, timeout=_LOCK_STEP_S)
            try:
                lock.__enter__()
                break
            except Timeout:
                if not told:
                    on_wait()
                told = True
            if cancelled.is_set():
                raise CancelledError("stopped while another program was fetching")
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _own_copy(self, file: HubFile) -> Path | None:
        """A file that is no link: from where links are not possible."""
        link = self.link(file)
        return None if link.is_symlink() else link

    def _known_commit(self) -> str:
        try:
            return (self.repository / "refs" / self._listing.revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None

"""A file under way: its first bytes beside the blob that it becomes, and a journal that vouches for them.

    blobs/<digest>.incomplete           the bytes so far
    blobs/<digest>.incomplete.journal   JSON lines: what the file is, then hashes of its first `bytes` bytes

The journal is never trusted about the bytes, only about their hash: whatever a crash or a full disk left behind, what
is resumed is a beginning whose hash is right. At most MARK_BYTES, or what came in MARK_S, is fetched again.
"""

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from localmoe.errors import LocalmoeError, OutOfMemoryError, VerificationError
from localmoe.hub.download.listing import Hash, HubFile
from localmoe.hub.json_file import shown

SUFFIX = ".incomplete"
JOURNAL_SUFFIX = ".incomplete.journal"
MARK_BYTES = 16 << 20
MARK_S = 1.0
_READ_BYTES = 1 << 20


class Part:
    """Bytes are added in order, from any one thread; `mark` may come from another."""

    def __init__(self, blob: Path, file: HubFile, revision: str) -> None:
        self.file = file
        self._revision = revision
        self.offset = 0  # bytes that are here and hashed
        self._blob = blob
        self._path, self._journal = part_of(blob), journal_of(blob)
        self._hash: Hash = file.new_hash()
        self._fd: int | None = None
        self._marked, self._marked_s = 0, time.monotonic()
        self._lock = Lock()

    def open(self, before_read: Callable[[int], None] = lambda nbytes: None) -> None:
        """Takes up what is there and right; `before_read(nbytes)` is told of every piece and may raise to end it."""
        if self.offset == 0 or not self._is_there(self.offset):
            self._take_up(before_read)
        self._open_at(self.offset)

    def write(self, data: bytes | memoryview) -> None:
        """Adds `data`; OutOfMemoryError when the disk is full."""
        with self._lock:
            assert self.offset + len(data) <= self.file.size
            try:
                self._write_all(memoryview(data))
            except OSError as error:
                raise cannot_write(self._path, error) from error
            self._hash.update(data)
            self.offset += len(data)
            is_due = time.monotonic() - self._marked_s >= MARK_S or self.offset - self._marked >= MARK_BYTES
        if is_due:
            self.mark()

    def mark(self) -> None:
        """Notes in the journal what is here. A disk without room for the note is no reason to stop."""
        with self._lock:
            if self._fd is None or self.offset == self._marked:
                return
            self._marked, self._marked_s = self.offset, time.monotonic()
            line = json.dumps({"bytes": self.offset, "hash": self._hash.copy().hexdigest()}) + "\n"
            try:
                with self._journal.open("a", encoding="ascii") as journal:
                    journal.write(line)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise cannot_write(self._journal, error) from error

    def close(self) -> None:
        """Keeps what is here for another time."""
        self.mark()
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def complete(self) -> None:
        """Makes the blob of a part that is whole and right; VerificationError otherwise, and the part is gone."""
        assert self.offset == self.file.size
        digest = self._hash.hexdigest()
        if digest != self.file.digest:
            self.discard()
            raise VerificationError(
                f"{shown(self.file.path)} came with the checksum {digest}; the hub's own list says {self.file.digest}.",
                "pull again; if it stays, the network changes what passes, or the hub's copy is damaged.",
            )
        try:
            self._become_blob()
        except OSError as error:
            raise cannot_write(self._blob, error) from error

    def discard(self) -> None:
        """Begins again from nothing."""
        self.close()
        remove_part(self._blob)
        self.offset, self._hash, self._marked = 0, self.file.new_hash(), 0

    def head(self, num_bytes: int) -> bytes:
        """The first bytes, as many as are here."""
        with self._path.open("rb") as file:
            return file.read(min(num_bytes, self.offset))

    def _is_there(self, num_bytes: int) -> bool:
        try:
            return self._path.stat().st_size >= num_bytes
        except OSError:
            return False

    def _take_up(self, before_read: Callable[[int], None]) -> None:
        """The longest beginning whose hash the journal knows."""
        self.offset, self._hash = 0, self.file.new_hash()
        best = self.offset, self._hash.copy()
        marks = _marks(self._journal, self.file)
        if marks and self._is_there(1):
            with self._path.open("rb", buffering=0) as file:
                for num_bytes, digest in marks:
                    if not self._rehash(file, num_bytes, before_read) or self._hash.hexdigest() != digest:
                        break
                    best = self.offset, self._hash.copy()
        self.offset, self._hash = best

    def _rehash(self, file: Any, num_bytes: int, before_read: Callable[[int], None]) -> bool:
        """Hashes on to `num_bytes`; False when the file is shorter."""
        while self.offset < num_bytes:
            before_read(min(_READ_BYTES, num_bytes - self.offset))
            data = file.read(min(_READ_BYTES, num_bytes - self.offset))
            if not data:
                return False
            self._hash.update(data)
            self.offset += len(data)
        return True

    def _open_at(self, offset: int) -> None:
        """Cuts the part to what is right, and the journal to what says so."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._fd, offset)
            os.lseek(self._fd, offset, os.SEEK_SET)
            self._begin_journal(offset)
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _begin_journal(self, offset: int) -> None:
        head = {"file": self.file.path, "revision": self._revision, "etag": self.file.digest, "size": self.file.size}
        marks = [{"bytes": n, "hash": digest} for n, digest in _marks(self._journal, self.file) if n <= offset]
        fresh = self._journal.with_suffix(".new")
        fresh.write_text("".join(json.dumps(line) + "\n" for line in (head, *marks)), encoding="ascii")
        fresh.replace(self._journal)
        self._marked, self._marked_s = offset, time.monotonic()

    def _write_all(self, data: memoryview) -> None:
        assert self._fd is not None
        while data:
            data = data[os.write(self._fd, data) :]

    def _become_blob(self) -> None:
        """On the disk before it has its name: a blob is right even after the power failed."""
        assert self._fd is not None
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = None
        self._path.replace(self._blob)
        self._journal.unlink(missing_ok=True)


def part_of(blob: Path) -> Path:
    """Where the bytes of `blob` gather."""
    return blob.with_name(blob.name + SUFFIX)


def journal_of(blob: Path) -> Path:
    """What vouches for them."""
    return blob.with_name(blob.name + JOURNAL_SUFFIX)


def bytes_vouched(blob: Path, file: HubFile) -> int:
    """How much of `file` a resumed pull will find, as far as can be said without reading it."""
    try:
        there = part_of(blob).stat().st_size
    except OSError:
        return 0
    return max((num_bytes for num_bytes, _ in _marks(journal_of(blob), file) if num_bytes <= there), default=0)


def remove_part(blob: Path) -> None:
    """Nothing of a file under way stays."""
    for path in (part_of(blob), journal_of(blob), journal_of(blob).with_suffix(".new")):
        path.unlink(missing_ok=True)


def remove_outdated(blobs: Path, revision: str, digests: set[str]) -> None:
    """Removes the parts that an earlier state of `revision` left: its files have `digests` now."""
    for journal in blobs.glob("*" + JOURNAL_SUFFIX):
        digest = journal.name.removesuffix(JOURNAL_SUFFIX)
        if digest not in digests and _head(_lines(journal)).get("revision") == revision:
            remove_part(journal.with_name(digest))


def cannot_write(path: Path, error: OSError) -> LocalmoeError:
    """What to say when the disk refuses."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemoryError(
            f"the disk of {shown(path.parent)} is full.", "make room there and pull again: what is here stays."
        )
    return LocalmoeError(
        f"{shown(path)} cannot be written: {error.strerror}.", "check the folder's permissions, or set HF_HOME."
    )


def _marks(journal: Path, file: HubFile) -> list[tuple[int, str]]:
    """Lengths and hashes, in order; empty when the journal is another file's. A line that was cut ends it."""
    lines = _lines(journal)
    head = _head(lines)
    if (head.get("etag"), head.get("size")) != (file.digest, file.size):
        return []
    marks: list[tuple[int, str]] = []
    for line in lines[1:]:
        if (mark := _mark(line, file.size)) is None or (marks and mark[0] <= marks[-1][0]):
            break
        marks.append(mark)
    return marks


def _lines(journal: Path) -> list[str]:
    try:
        return journal.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _head(lines: list[str]) -> dict[str, Any]:
    try:
        head = json.loads(lines[0]) if lines else {}
    except ValueError:
        return {}
    return head if isinstance(head, dict) else {}


def _mark(line: str, size: int) -> tuple[int, str] | None:
    try:
        data = json.loads(line)
        num_bytes, digest = data["bytes"], data["hash"]
    except (ValueError, KeyError, TypeError):
        return None
    return (num_bytes, digest) if type(num_bytes) is int and 0 < num_bytes <= size and isinstance(digest, str) else None

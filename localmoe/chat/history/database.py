"""The file: private to its user, safe with two processes, and never thrown away."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localmoe.chat.history.schema import migrate
from localmoe.chat.history.soundness import forget_check, is_as_it_was_left, lock_of, note_check
from localmoe.errors import LocalmoeError

BUSY_S = 10.0  # how long one process waits for another's write
CHECKED_BYTES = 64 << 20  # larger files are not read as a whole before they are used
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Notice = Callable[[str, str], None]  # what happened, and what can be done


def open_database(path: Path, on_notice: Notice) -> sqlite3.Connection:
    """The database at `path`, made or brought up to date; a damaged one is set aside first, and said."""
    with explained(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path):
            if path.exists() and not is_as_it_was_left(path):
                if damage := _damage(path):
                    _set_aside(path, damage, on_notice)
                else:
                    note_check(path)
            _make_private(path)
            connection = _connect(path)
            try:
                migrate(connection)
            except BaseException:
                connection.close()
                raise
    return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Says in a sentence what SQLite or the disk refuse."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, sqlite3.Error) and _is_damage(error):
            forget_check(path)
            hint = "start localmoe again: it sets the damaged file aside and begins a new one"
        else:
            hint = "is the disk full, or the folder not yours? --no-save goes without chats"
        raise LocalmoeError(f"chats cannot be kept in {path}: {error}", hint) from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Within, no other process opens or replaces the file. A killed process lets go by itself."""
    descriptor = os.open(lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """Before SQLite makes it: files beside it get the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _connect(path: Path) -> sqlite3.Connection:
    """Every process commits to the log without waiting for the disk: a killed one loses nothing that it committed."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON", "recursive_triggers = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    connection.row_factory = sqlite3.Row
    return connection


def _damage(path: Path) -> str:
    """What is wrong with the file, or an empty string."""
    try:
        connection = _connect(path)
        try:
            if path.stat().st_size <= CHECKED_BYTES:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                return "" if found == "ok" else str(found)
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return str(error)
        raise
    return ""


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # Python's own complaints have none
    return code is not None and code & 0xFF in _DAMAGED


def _set_aside(path: Path, damage: str, on_notice: Notice) -> None:
    """Renames the file and its log; nothing of it is lost."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    for end in ("", "-wal", "-shm"):
        part = path.with_name(path.name + end)
        if part.exists():
            part.rename(aside.with_name(aside.name + end))
    on_notice(
        f"the file with your chats is damaged ({damage}); it was set aside, and a new one begun",
        f'it is kept: sqlite3 "{aside}" .recover may bring its chats back',
    )

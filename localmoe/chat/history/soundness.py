"""Whether the file must be read as a whole before it is used: not when it lies there as localmoe left it.

Reading 60 MB of chats takes 0.15 s, at every start. A note in the lock file says how the file was left; damage by a
disk, which changes no time stamp, is looked for once a day.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

CHECK_EVERY_S = 24 * 3600


def lock_of(path: Path) -> Path:
    """The file beside the chats that processes lock, and that the note is in."""
    return path.with_suffix(".lock")


def is_as_it_was_left(path: Path) -> bool:
    """Whether nobody but localmoe changed the file, and it was found sound within a day."""
    note = _note(path)
    since_s = time.time() - note.get("checked_s", 0.0)
    return note.get("stamp") == _stamp(path) and 0 <= since_s < CHECK_EVERY_S


def note_check(path: Path) -> None:
    """The file was just found to be sound."""
    _write(path, {"checked_s": time.time(), "stamp": _stamp(path)})


def note_leaving(path: Path) -> None:
    """A connection was closed: the file may have grown since it was checked."""
    if note := _note(path):
        _write(path, note | {"stamp": _stamp(path)})


def forget_check(path: Path) -> None:
    """Damage was met in use: the next to open the file looks at all of it."""
    _write(path, {})


def _note(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(lock_of(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    known = isinstance(found, dict) and isinstance(found.get("checked_s"), int | float)
    return found if known else {}


def _write(path: Path, note: dict[str, Any]) -> None:
    """Without it the next check comes sooner, no more."""
    with suppress(OSError):
        lock_of(path).write_text(json.dumps(note), encoding="ascii")


def _stamp(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]

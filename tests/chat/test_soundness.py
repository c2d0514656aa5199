"""When the file of the chats is read as a whole before it is used, and when not."""

import os
import sqlite3

import pytest

from localmoe.chat.history import database, soundness
from localmoe.chat.history.history import History
from localmoe.chat.history.pen import Pen
from localmoe.chat.history.records import Chat, new_id
from localmoe.errors import LocalmoeError


@pytest.fixture
def checks(monkeypatch):
    """The files that were read as a whole."""
    real, seen = database._damage, []
    monkeypatch.setattr(database, "_damage", lambda path: seen.append(path) or real(path))
    return seen


@pytest.fixture
def path(tmp_path):
    """A file that was used and found sound."""
    path = tmp_path / "chats.db"
    for _ in range(2):
        use(path)
    return path


def use(path) -> None:
    with History(path, lambda *_: None) as history:
        Pen(history, Chat(new_id())).ask("Hm?", "guide")


def test_a_file_as_it_was_left_is_not(path, checks):
    for _ in range(3):
        use(path)
    assert not checks


def test_a_file_that_another_program_changed_is_and_then_not_again(path, checks):
    with sqlite3.connect(path) as db:
        db.execute("UPDATE chats SET title = 'x'")
    db.close()
    use(path)
    use(path)
    assert checks == [path]


def test_a_file_that_came_from_elsewhere_is(path, checks):
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))
    use(path)
    assert checks == [path]


def test_a_day_later_it_is(path, checks, monkeypatch):
    now_s = soundness.time.time()
    monkeypatch.setattr(soundness.time, "time", lambda: now_s + soundness.CHECK_EVERY_S + 1)
    use(path)
    assert checks == [path]


def test_after_damage_was_met_it_is(path, checks):
    with pytest.raises(LocalmoeError, match="chats cannot be kept") as caught, database.explained(path):
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error
    assert "start localmoe again" in caught.value.hint
    use(path)
    assert checks == [path]


@pytest.mark.parametrize("note", ["", "{", "[]", '{"checked_s": "x"}', '{"stamp": [1, 2]}', "\xff"])
def test_a_note_that_says_nothing_counts_for_nothing(path, checks, note):
    soundness.lock_of(path).write_text(note, encoding="latin-1")
    use(path)
    assert checks == [path]

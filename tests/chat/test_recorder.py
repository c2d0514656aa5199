"""Who hands something to the recorder never waits for the disk."""

import sqlite3
import time

import pytest

from localmoe.chat.history.history import History
from localmoe.chat.history.recorder import Recorder
from localmoe.chat.history.records import Chat
from localmoe.errors import ChatNotFoundError, LocalmoeError
from localmoe.events import Finished, TextDelta

DONE = Finished("stop", "Yes.", "", 1, 0, 1, None, None, None)


@pytest.fixture
def said():
    return []


@pytest.fixture
def recorder(tmp_path, said):
    recorder = Recorder(tmp_path / "chats.db", lambda *trouble: said.append(trouble))
    yield recorder
    recorder.close()


def kept(tmp_path, name="one"):
    with History(tmp_path / "chats.db", lambda *notice: None) as history:
        return [(turn.text, turn.ending) for turn in history.line(Chat(name))]


def test_everything_is_kept_in_order(recorder, tmp_path):
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    recorder.hear(DONE)
    recorder.ask("And?", "guide")
    recorder.hear(TextDelta("Well"))
    recorder.close()
    assert kept(tmp_path) == [("Hm?", "stop"), ("Yes.", "stop"), ("And?", "stop"), ("Well", "cancelled")]


def test_a_last_word_is_kept_without_a_next_one(recorder, tmp_path):
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    recorder.hear(TextDelta("Well"))
    time.sleep(0.8)
    assert kept(tmp_path) == [("Hm?", "stop"), ("Well", "writing")]


def test_who_asks_sees_what_was_handed_over_before(recorder):
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    assert recorder.call(lambda history: history.chat("one")).result(10).title == "Hm?"
    with pytest.raises(ChatNotFoundError):
        recorder.call(lambda history: history.chat("two")).result(10)
    assert recorder.call(lambda history: len(history.chats())).result(10) == 1


def test_what_nobody_waits_for_any_more_is_done_and_the_rest_goes_on(recorder, tmp_path):
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    recorder.call(lambda history: time.sleep(0.2))
    futures = [recorder.call(lambda history, n=n: history.rename(Chat("one"), f"title {n}")) for n in range(3)]
    assert all(future.cancel() for future in futures)
    assert recorder.call(lambda history: history.chat("one")).result(10).title == "title 2"


def test_another_chat_ends_the_answer_of_the_first(recorder, tmp_path):
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    recorder.hear(TextDelta("Well"))
    recorder.write(Chat("two"))
    recorder.ask("And?", "guide")
    recorder.hear(DONE)
    recorder.close()
    assert kept(tmp_path) == [("Hm?", "stop"), ("Well", "cancelled")]
    assert kept(tmp_path, "two") == [("And?", "stop"), ("Yes.", "stop")]


def test_nobody_waits_while_another_process_writes(recorder, tmp_path):
    recorder.call(lambda history: None).result(10)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    start_s = time.monotonic()
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    recorder.hear(DONE)
    assert time.monotonic() - start_s < 0.2
    time.sleep(0.3)
    other.execute("COMMIT")
    other.close()
    recorder.close()
    assert kept(tmp_path) == [("Hm?", "stop"), ("Yes.", "stop")]


def test_without_a_file_each_trouble_is_said_once_and_nothing_hangs(tmp_path, said):
    (tmp_path / "chats.db").mkdir()
    recorder = Recorder(tmp_path / "chats.db", lambda *trouble: said.append(trouble))
    for _ in range(3):
        recorder.write(Chat("one"))
        recorder.ask("Hm?", "guide")
        recorder.hear(DONE)
    with pytest.raises(LocalmoeError, match="chats cannot be kept"):
        recorder.call(lambda history: history.chats()).result(10)
    recorder.close()
    assert len(said) == 1


def test_what_cannot_be_kept_is_said_once_and_the_rest_goes_on(recorder, tmp_path, said):
    recorder.write(Chat("one"))
    recorder.ask("Hm?", "guide")
    recorder.hear(DONE)
    recorder.call(lambda history: history.rows("PRAGMA query_only = ON")).result(10)
    for _ in range(3):
        recorder.ask("Lost?", "guide")
        recorder.hear(DONE)
    recorder.call(lambda history: history.rows("PRAGMA query_only = OFF")).result(10)
    recorder.ask("And?", "guide")
    recorder.hear(DONE)
    recorder.close()
    assert kept(tmp_path) == [("Hm?", "stop"), ("Yes.", "stop"), ("And?", "stop"), ("Yes.", "stop")]
    assert len(said) == 1

"""Several processes with one file, and processes that are killed at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import localmoe
from localmoe.chat.history.history import History
from localmoe.chat.history.records import Chat
from localmoe.chat.history.search import search

PACKAGE = str(Path(localmoe.__file__).resolve().parent.parent)
LATE_S = 1.5  # half a second, and what a machine busy with other tests may take on top

# Answers are the moments at which they were written, so that a reader can tell how much of them is missing.
TALK = """
import sys, time
from pathlib import Path
from localmoe.chat.history.recorder import Recorder
from localmoe.chat.history.records import Chat
from localmoe.events import Finished, TextDelta

def trouble(message, hint):
    sys.exit(message)

path, name, num_answers, answer_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
recorder = Recorder(path, trouble)
recorder.write(Chat(name))
print("up", flush=True)
for number in range(num_answers):
    recorder.ask(f"question {number}", "guide")
    text, end = "", time.monotonic() + answer_s
    while time.monotonic() < end:
        piece = f"{time.monotonic():.4f} "
        text += piece
        recorder.hear(TextDelta(piece))
        time.sleep(0.002)
    recorder.hear(Finished("stop", text + "end", "", 1, 0, 1, None, None, None))
recorder.call(lambda history: None).result()
recorder.close()
"""


def no_notice(message, hint):
    raise AssertionError(message)


def start(path, name, num_answers=1000, answer_s=0.0):
    arguments = [sys.executable, "-c", TALK, str(path), name, str(num_answers), str(answer_s)]
    return subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": PACKAGE}, stdout=subprocess.PIPE)


def assert_whole(history):
    assert history.rows("PRAGMA integrity_check")[0][0] == "ok"
    with history.writing() as db:
        db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    assert history.rows("PRAGMA foreign_key_check") == []


def killed_while_it_answers(path, seed):
    """Kills a process that makes answers of 1.2 s; the moment of it, by the clock the answers are made of."""
    with start(path, f"chat{seed}", answer_s=1.2) as process:
        assert process.stdout.readline() == b"up\n"
        time.sleep(random.Random(seed).uniform(0.05, 3.0))
        process.send_signal(signal.SIGKILL)
        return time.monotonic()


def assert_only_the_end_is_missing(history, name, killed_s):
    turns = history.line(Chat(name))
    for turn in turns[1:-1:2]:
        assert turn.ending == "stop" and turn.text.endswith(" end")
    if not turns:  # before the first question
        return
    last = turns[-1]
    assert last.role == "assistant" and last.ending in ("killed", "stop")
    moments = [float(word) for word in last.text.split() if word != "end"]
    begun_s = last.created_ms / 1000 - (time.time() - time.monotonic())
    if last.ending == "killed":
        assert moments == sorted(moments)
        assert killed_s - (moments[-1] if moments else begun_s) < LATE_S


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_process_loses_half_a_second_of_its_answer(tmp_path, seed):
    path = tmp_path / "chats.db"
    killed_s = killed_while_it_answers(path, seed)
    with History(path, no_notice) as history:
        assert_whole(history)
        assert_only_the_end_is_missing(history, f"chat{seed}", killed_s)


@pytest.mark.slow
def test_many_killed_processes_leave_one_whole_file(tmp_path):
    path = tmp_path / "chats.db"
    killed = {f"chat{seed}": killed_while_it_answers(path, seed) for seed in range(100, 160)}
    with History(path, no_notice) as history:
        assert_whole(history)
        for name, killed_s in killed.items():
            assert_only_the_end_is_missing(history, name, killed_s)


@pytest.mark.slow
def test_kills_among_many_short_answers_leave_whole_chats(tmp_path):
    """Short answers keep the process inside transactions most of the time."""
    path, generator = tmp_path / "chats.db", random.Random(7)
    for number in range(40):
        with start(path, f"chat{number}", num_answers=100_000) as process:
            process.stdout.readline()
            time.sleep(generator.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
        with History(path, no_notice) as history:
            turns = history.line(Chat(f"chat{number}"))
            assert [turn.text for turn in turns[::2]] == [f"question {place}" for place in range(len(turns) // 2)]
    with History(path, no_notice) as history:
        assert_whole(history)


def test_two_processes_write_at_once(tmp_path):
    path, num_answers = tmp_path / "chats.db", 150
    processes = [start(path, name, num_answers) for name in ("one", "two")]
    assert [process.wait(60) for process in processes] == [0, 0]
    with History(path, no_notice) as history:
        assert_whole(history)
        for name in ("one", "two"):
            turns = history.line(Chat(name))
            assert [turn.text for turn in turns[::2]] == [f"question {place}" for place in range(num_answers)]
            assert {turn.ending for turn in turns} == {"stop"}
        assert len(search(history, "question", limit=1000)) == 2 * num_answers + 2  # and the titles


def test_a_new_file_is_made_once_by_many(tmp_path):
    path = tmp_path / "chats.db"
    processes = [start(path, f"chat{number}", 1) for number in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    with History(path, no_notice) as history:
        assert len(history.chats()) == 4


def test_what_another_process_writes_right_now_is_left_alone(tmp_path):
    path = tmp_path / "chats.db"
    with start(path, "chat1", num_answers=1, answer_s=3) as process:
        process.stdout.readline()
        time.sleep(1)
        with History(path, no_notice) as history:
            assert history.line(Chat("chat1"))[-1].ending == "writing"
        assert process.wait(30) == 0
    with History(path, no_notice) as history:
        assert history.line(Chat("chat1"))[-1].ending == "stop"

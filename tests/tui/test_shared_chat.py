"""Two chats and one engine: real programs, and what is left when one of them is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from terminal import PACKAGE, Terminal

QUESTION = "What can you do?"
LONG = "Tell me everything."


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts chats of one user, and ends them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    running = []

    def start_chat():
        running.append(Terminal(sys.executable, ["-m", "localmoe", "chat"], tmp_path, columns=110, rows=40))
        running[-1].wait_for("Try one")
        return running[-1]

    yield start_chat
    for chat in running:
        chat.close()


def ask(folder, *options):
    command = [sys.executable, "-m", "localmoe", "ask", "--no-save", "--temperature", "0", "--json", *options, QUESTION]
    away = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": PACKAGE, "HOME": str(folder)}}
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, **away).stdout)


def kill(chat):
    os.kill(chat.process, signal.SIGKILL)


def wait_until_it_lends(chat, folder):
    chat.wait_for(lambda text: list((folder / "localmoe").glob(f"*.{chat.process}.*.sock")))


def test_ask_and_a_second_chat_use_the_first_one_s_engine(start, tmp_path):
    alone = ask(tmp_path)
    first = start()
    shared = ask(tmp_path)
    assert shared["text"] == alone["text"] and shared["plan"]["engine_process"] == first.process
    assert ask(tmp_path, "--no-share")["plan"]["engine_process"] is None
    second = start()
    second.wait_for(f"process {first.process}")
    second.press(f"{QUESTION}\r")
    second.wait_for(lambda text: "guide" in text and "Enter send" in text and "tok/s" in text)
    kill(second)
    assert ask(tmp_path)["plan"]["engine_process"] == first.process


def test_when_the_first_chat_quits_the_second_says_so_and_goes_on_by_itself(start, tmp_path):
    first, second = start(), start()
    second.press(f"{QUESTION}\r")
    second.wait_for("For anything else")
    second.wait_for("Enter send")
    first.press("\x11")
    assert first.end() == 0
    second.wait_for("has ended")
    second.wait_for("Enter opens it")
    second.press("And then?\r")
    wait_until_it_lends(second, tmp_path)
    assert ask(tmp_path)["plan"]["engine_process"] == second.process
    assert QUESTION in second.text


@pytest.mark.parametrize("seed", range(2))
def test_when_the_first_chat_is_killed_at_any_time_the_second_goes_on(start, tmp_path, seed):
    first, second = start(), start()
    second.press(f"{LONG}\r")
    time.sleep(random.Random(seed).uniform(0.0, 0.1))
    kill(first)
    second.wait_for("has ended")
    second.wait_for("Enter opens it")
    second.press("\r")
    wait_until_it_lends(second, tmp_path)
    assert ask(tmp_path)["plan"]["engine_process"] == second.process
    assert LONG in second.text

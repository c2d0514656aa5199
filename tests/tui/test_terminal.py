"""The real program in a pseudo-terminal, with the real embedded model."""

import json
import os
import re
import subprocess
import sys

import pytest
from terminal import PACKAGE, Terminal

QUESTION = "What can you do?"


@pytest.fixture
def chat(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALMOE_TEMPERATURE", "0")
    terminal = Terminal(sys.executable, ["-m", "localmoe", "chat"], tmp_path)
    yield terminal
    terminal.close()


def expected_answer(folder):
    command = [sys.executable, "-m", "localmoe", "ask", "--temperature", "0", "--json", QUESTION]
    away = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": PACKAGE}}
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, **away)
    return json.loads(result.stdout)["text"]


def words(text):
    return "".join(c if c.isalnum() else " " for c in text).split()


def assert_left_clean(chat):
    """The screen is given back, and nothing is printed after it."""
    taken, _, after = chat.raw.rpartition(b"\x1b[?1049l")
    assert b"\x1b[?1049h" in taken
    assert re.sub(rb"\x1b\[[^a-zA-Z]*[a-zA-Z]", b"", after).strip() == b"", after


def test_a_conversation_with_the_embedded_model(chat, tmp_path):
    chat.wait_for("Try one")
    if "LOCALMOE_MODEL" not in os.environ:
        assert "guide · a tiny demonstration model" in chat.text
    chat.wait_for("Enter send")
    chat.press("\x1bOQ")  # F2: the whole width for the answer
    chat.press(QUESTION)
    chat.wait_for(f"❯ {QUESTION}")
    chat.press("\r")
    wanted = words(expected_answer(tmp_path))
    screen = chat.wait_for(lambda text: " ".join(wanted) in " ".join(words(text)) and "Esc stop" not in text)
    assert QUESTION in screen
    chat.press("한국어")
    chat.wait_for("❯ 한국어")
    chat.press("\x11")
    assert chat.end() == 0
    assert_left_clean(chat)


def test_leaving_before_the_model_is_open(chat):
    chat.wait_for("Ask something")
    chat.press("\x11")
    assert chat.end() == 0
    assert_left_clean(chat)


def test_leaving_in_the_middle_of_an_answer(chat):
    chat.wait_for("Try one")
    chat.press(f"{QUESTION}\r")
    chat.wait_for("Esc stop")
    chat.press("\x11")
    assert chat.end() == 0
    assert_left_clean(chat)


def test_lines_sent_in_one_go_arrive_in_order(chat):
    chat.wait_for("Try one")
    chat.press("first line\nsecond line")  # \n is Ctrl+J
    chat.wait_for(lambda text: "❯ first line" in text and "│   second line" in text)

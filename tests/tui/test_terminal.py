"""The real program in a pseudo-terminal, with the real embedded model."""

import json
import os
import re
import signal
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
    command = [sys.executable, "-m", "localmoe", "ask", "--no-save", "--temperature", "0", "--json", QUESTION]
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
    text = chat.wait_for("❯ 한국어")
    (row,) = (number for number, line in enumerate(text.splitlines()) if "❯ 한국어" in line)
    assert chat.cursor == (4 + 6, row), "an input method composes where the text goes on"
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_clean_screen(chat, number):
    chat.wait_for("Try one")
    chat.signal(number)
    assert chat.end() == 128 + number
    assert_left_clean(chat)


CRASHING = """
import sys
from localmoe.cli import main
from localmoe.tui.screens.chat import ChatScreen
def broken(self):
    raise RuntimeError("planted")
ChatScreen.action_show_keys = broken
sys.argv = ["localmoe", "chat"]
main()
"""


def test_a_terminal_that_goes_without_a_signal_ends_the_chat(tmp_path):
    ours, theirs = os.openpty()
    away = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": PACKAGE, "HOME": str(tmp_path), "TERM": "xterm"}}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    chat = subprocess.Popen([sys.executable, "-m", "localmoe", "chat"], start_new_session=True, **streams, **away)
    os.close(theirs)
    os.read(ours, 1)  # it draws
    os.close(ours)
    assert chat.wait(60) in (-signal.SIGHUP, 128 + signal.SIGHUP)


def test_a_crash_gives_the_screen_back_and_says_two_lines(tmp_path):
    terminal = Terminal(sys.executable, ["-c", CRASHING], tmp_path)
    terminal.wait_for("Try one")
    terminal.press("\x1bOP")  # F1
    assert terminal.end() == 1
    _, _, after = terminal.raw.rpartition(b"\x1b[?1049l")
    said = re.sub(rb"\x1b\[[^a-zA-Z]*[a-zA-Z]", b"", after).decode().split("\r\n")
    assert "planted" in said[0] and said[1].startswith("hint: ") and not any(said[2:])


def test_the_prompt_goes_to_the_editor_and_comes_back(tmp_path, monkeypatch):
    editor = tmp_path / "editor"
    lines = ("#!/bin/sh", 'printf "\\033[2J\\033[HEDITING"', "read word", '[ "$word" = no ] && exit 1')
    editor.write_text("\n".join((*lines, 'printf "%s" "$word" >> "$1"', "")))
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    terminal = Terminal(sys.executable, ["-m", "localmoe", "chat"], tmp_path)
    terminal.wait_for("Try one")
    terminal.press("one")
    terminal.wait_for("❯ one")
    for typed, wanted in (("no", "ended with 1"), ("two", "❯ onetwo")):
        terminal.press("\x07")  # Ctrl+G
        terminal.wait_for("EDITING")
        terminal.press(f"{typed}\n")
        terminal.wait_for(wanted)
    terminal.press("\x11")
    assert terminal.end() == 0
    assert_left_clean(terminal)


def test_a_terminal_of_sixteen_colours_gets_its_own(tmp_path):
    terminal = Terminal(sys.executable, ["-m", "localmoe", "chat"], tmp_path, colours=("xterm", ""))
    terminal.wait_for("Try one")
    terminal.press("\x11")
    assert terminal.end() == 0
    codes = {code for codes in re.findall(rb"\x1b\[([0-9;]+)m", terminal.raw) for code in codes.split(b";")}
    assert b"34" in codes, "the accents are blue"
    assert not codes & {b"38", b"48"}, "nothing that 16 colours cannot do"

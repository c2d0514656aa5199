"""A whole session in tmux: start, ask, stop, regenerate, switch the chat, search, export, quit."""

import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from terminal import PACKAGE
from tmux import FOUND, Tmux

pytestmark = pytest.mark.skipif(FOUND is None, reason="tmux is not on this machine")

PROGRAM = """
from localmoe.cli import opening
from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine

ANSWERS = [
    "The loader need not wait for the **router**.",
    Script("One by one, and then it never ends, says the script.", pause_after=4),
    "A second answer, to the same question.",
    "Bread needs flour, water, salt and time.",
]

def open_engine(settings, on_event, cancelled=lambda: False):
    return ScriptedEngine(ANSWERS, time_scale=1.0, on_event=on_event)

opening.open_engine = open_engine
from localmoe.cli import main
main()
"""


@pytest.fixture
def tmux(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    home = shlex.quote(str(tmp_path))
    environment = (
        f"env -u LOCALMOE_MODEL -u COLUMNS -u LINES HOME={home} XDG_CONFIG_HOME={home}/config XDG_DATA_HOME={home}/data"
    )
    paths = f"XDG_CACHE_HOME={home}/cache XDG_RUNTIME_DIR={home} PYTHONPATH={shlex.quote(PACKAGE)} COLORTERM=truecolor"
    command = f"{environment} {paths} {shlex.quote(sys.executable)} program.py; echo left with $?; exec sleep 600"
    with TemporaryDirectory(prefix="tmux") as short:  # a socket's path may not be long
        terminal = Tmux(Path(short) / "socket", command, tmp_path)
        yield terminal
        terminal.close()


def idle(text: str) -> bool:
    return "Enter send" in text


def test_a_whole_session(tmux, tmp_path):
    tmux.wait_for(lambda text: "Try one" in text and idle(text))
    tmux.write("Why does the loader not wait?")
    tmux.press("Enter")
    tmux.wait_for(lambda text: "need not wait for the router." in text and idle(text))

    tmux.write("And then?")
    tmux.press("Enter")
    tmux.wait_for(lambda text: "One by one," in text and "Esc stop" in text)
    tmux.press("Escape")
    tmux.wait_for(lambda text: "stopped" in text and idle(text))
    assert "says the script" not in tmux.text

    tmux.press("C-r")
    tmux.wait_for(lambda text: "A second answer, to the same question." in text and idle(text))
    assert "One by one," not in tmux.text

    tmux.press("C-n")
    tmux.wait_for("Try one")
    tmux.write("How is bread made?")
    tmux.press("Enter")
    tmux.wait_for(lambda text: "flour, water, salt and time." in text and idle(text))

    tmux.press("C-o")
    tmux.wait_for(lambda text: "Why does the loader not wait?" in text and "How is bread made?" in text)
    tmux.write("router")
    tmux.wait_for(lambda text: "Why does the loader not wait?" in text and "How is bread made?" not in search_of(text))
    tmux.press("Enter")
    tmux.wait_for(lambda text: "A second answer" in text and idle(text))

    tmux.write("/export talk.md")
    tmux.press("Enter")
    tmux.wait_for("Written to")
    talk = (tmp_path / "talk.md").read_text()
    assert "Why does the loader not wait?" in talk and "A second answer, to the same question." in talk

    tmux.press("C-q")
    screen = tmux.wait_for("left with")
    assert screen.split("left with")[1].split() == ["0"]
    assert "Enter send" not in screen  # the screen is given back as it was


def search_of(text: str) -> str:
    """What the page of chats shows, without the chat behind it."""
    return "\n".join(line for line in text.splitlines() if "│" in line)

"""Messages and code to the clipboard: by key, by click, by OSC 52 and by the system's tools."""

from time import monotonic

import pytest
from staged import StagedChat, answered, opened, say, told, until

from localmoe.tui import clipboard
from localmoe.tui.copying import code_in
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.copy_mark import CopyMark
from localmoe.tui.widgets.markdown import Fence
from localmoe.tui.widgets.user_turn import UserTurn

TWO = "First:\n\n```python\na = 1\n\nb = 2\n```\n\nthen\n\n~~~\n\tsecond\n~~~\n"


async def talked(pilot, *questions):
    await opened(pilot)
    for question in questions or ("Hm?",):
        await say(pilot, question)
        await answered(pilot)
    await pilot.pause()
    return pilot.app


async def test_a_further_press_copies_the_answer_before():
    async with StagedChat(["One.", "Two.", "Three."]).run_test() as pilot:
        app = await talked(pilot, "1", "2", "3")
        seen = []
        for _ in range(4):
            await pilot.press("ctrl+y")
            seen.append(app.clipboard)
        assert seen == ["Three.", "Two.", "One.", "Three."]
        assert "answer 1 of 3" in told(app)


async def test_code_is_copied_by_key_the_last_block_first():
    async with StagedChat([TWO]).run_test() as pilot:
        app = await talked(pilot)
        await pilot.press("f6")
        assert app.clipboard == "\tsecond"
        await pilot.press("f6")
        assert app.clipboard == "a = 1\n\nb = 2"


async def test_without_code_that_is_said():
    async with StagedChat(["No code."]).run_test() as pilot:
        app = await talked(pilot)
        await pilot.press("f6")
        await pilot.pause()
        assert "There is no block of code to copy yet" in told(app) and app.clipboard == ""


async def test_a_click_copies_a_block_an_answer_or_a_question():
    async with StagedChat([TWO]).run_test(size=(100, 40)) as pilot:
        app = await talked(pilot, "Which *code*?")
        for inside, text in (
            (app.query(Fence).first(), "a = 1\n\nb = 2"),
            (app.query_one(AnswerTurn), TWO),
            (app.query_one(UserTurn), "Which *code*?"),
        ):
            await pilot.click(inside.query(CopyMark).first())
            await until(pilot, lambda text=text: app.clipboard == text)


async def test_the_head_of_code_names_its_language_and_stays_in_view():
    async with StagedChat(["```python\n" + "x = 1  # " + "long " * 60 + "\n```"]).run_test(size=(80, 24)) as pilot:
        app = await talked(pilot)
        mark = app.query_one(Fence).query_one(CopyMark)
        assert mark.region.right <= app.query_one(Fence).region.right <= 80


def test_code_is_found_as_markdown_has_it():
    assert code_in(["```\nopen", "1. a\n\n   ```sh\n   ls\n    -l\n   ```\n", "````\n```\ninner\n```\n````"]) == [
        "open",
        "ls\n -l",
        "```\ninner\n```",
    ]


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a program of this name on an otherwise usual PATH; it writes its arguments and input to a file."""
    for variable in ("WAYLAND_DISPLAY", "DISPLAY", "WSL_DISTRO_NAME", "TMUX"):
        monkeypatch.delenv(variable, raising=False)

    def make(name, line='{ echo "$@"; cat; } > "$0.out"'):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
        return path

    return make


def environ(tmp_path, **more):
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", **more}


def test_the_tool_of_the_display_gets_the_text(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("wl-copy", "xclip"):
        tool(name)
    clipboard.hand_over("한국어\n", environ(tmp_path, WAYLAND_DISPLAY="wayland-0", DISPLAY=":0"))
    assert (tmp_path / "wl-copy.out").read_text() == "\n한국어\n"
    assert not (tmp_path / "xclip.out").exists()
    clipboard.hand_over("x", environ(tmp_path, DISPLAY=":0"))
    assert (tmp_path / "xclip.out").read_text() == "-selection clipboard -in\nx"


def test_tmux_gets_it_beside_the_display(tool, tmp_path):
    for name in ("wl-copy", "tmux"):
        tool(name)
    found = clipboard.tools(environ(tmp_path, WAYLAND_DISPLAY="w", TMUX="/tmp/x"))
    assert [command[0] for command in found] == ["wl-copy", "tmux"]


def test_without_a_display_no_tool_is_asked(tool, tmp_path):
    tool("xclip")
    assert clipboard.tools(environ(tmp_path)) == []


def test_a_tool_that_fails_or_hangs_is_given_up(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(clipboard, "_TOOL_S", 0.2)
    tool("wl-copy", "exec sleep 30")
    start_s = monotonic()
    clipboard.hand_over("x" * 1_000_000, environ(tmp_path, WAYLAND_DISPLAY="w"))
    assert monotonic() - start_s < 15
    tool("wl-copy", "exit 1")
    clipboard.hand_over("x", environ(tmp_path, WAYLAND_DISPLAY="w"))

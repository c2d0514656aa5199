"""How every state looks, at 80x24 and at 120x40. `--snapshot-update` accepts a new look."""

import time
from dataclasses import replace

import pytest
from scenes import ANSWER, QUESTION, SCENES, THOUGHT
from staged import DEEPSEEK, StagedChat, opened, until

from localmoe.chat.history.documents import take_chats
from localmoe.chat.history.history import History
from localmoe.chat.history.records import Chat, Turn
from localmoe.tui.screens.chats import ChatsScreen


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("name", SCENES)
def test_picture(name, size, snap_compare):
    scene = SCENES[name]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=size)


@pytest.mark.parametrize("size", [(50, 20), (40, 12)], ids=["50x20", "40x12"])
def test_picture_of_a_small_terminal(size, snap_compare):
    scene = SCENES["prefill"]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=size)


def test_picture_of_lanes_in_a_small_terminal(snap_compare):
    scene = SCENES["lanes_prefill"]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=(60, 20))


def test_picture_of_the_light_theme(snap_compare):
    scene = SCENES["answer"]
    app = scene.app()
    app.theme = "localmoe-light"
    assert snap_compare(app, run_before=scene.play, terminal_size=(120, 40))


def test_picture_without_colours(snap_compare, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    scene = SCENES["answer"]
    assert snap_compare(scene.app(), run_before=scene.play, terminal_size=(120, 40))


THEN_MS = 1_790_000_000_000
TITLES = (
    "Loading experts",
    "전문가 혼합 모델이란?",
    "Write a Python function that merges overlapping intervals, with tests",
    "Hm?",
)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A file of four chats, the first of them long, at a fixed time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    long = []
    for number in range(20):
        figures = {"thought_tokens": 76, "thought_s": 3.6}
        long.append(
            Turn("user", f"{number + 1}. {QUESTION}", created_ms=THEN_MS, parent=len(long) - 1 if long else None)
        )
        long.append(Turn("assistant", ANSWER, THOUGHT, "deepseek-v3.1", "stop", figures, THEN_MS, parent=len(long) - 1))
    short = [Turn("user", "Hm?", created_ms=THEN_MS), Turn("assistant", "Yes.", created_ms=THEN_MS, parent=0)]
    path = tmp_path / "chats.db"
    with History(path, lambda *notice: None) as history:
        for place, title in enumerate(TITLES):
            chat = Chat(f"chat{place}", title, "deepseek-v3.1", created_ms=THEN_MS, updated_ms=THEN_MS)
            chat = replace(chat, updated_ms=THEN_MS - place * 7_200_000)
            take_chats(history, [(chat, short if place else long)])
    yield path
    monkeypatch.undo()
    time.tzset()


async def chats(pilot):
    await opened(pilot)
    await pilot.press("ctrl+o")
    await until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen) and pilot.app.screen._choices)


async def found(pilot):
    await chats(pilot)
    await pilot.press(*"router")
    await until(pilot, lambda: len(pilot.app.screen._choices) == 20)


async def resumed(pilot):
    await chats(pilot)
    await pilot.press("enter")
    await until(pilot, lambda: pilot.app.screen is pilot.app.chat and pilot.app.chat.conversation.messages)
    await pilot.press("ctrl+home")
    await until(pilot, lambda: pilot.app.chat.query_one("#turns").first == 0)


async def empty(pilot):
    await opened(pilot)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("play", [empty, chats, found, resumed])
def test_picture_of_what_is_kept(play, size, kept, snap_compare):
    app = StagedChat(info=DEEPSEEK, history=kept)
    assert snap_compare(app, run_before=play, terminal_size=size)

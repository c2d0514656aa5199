"""Writing: growing, breaking lines, pasting, wide characters, scrolling the chat from the prompt."""

import pytest
from staged import StagedChat, answered, opened, say, until
from textual import events

from localmoe.engine.script import Script
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.transcript import Transcript

LONG = "\n\n".join(f"Paragraph {n}." for n in range(60))


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_a_newline_does_not_send(key):
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("a", key, "b")
        assert app.prompt.text == "a\nb"
        assert not app.scripted.requests


async def test_keys_typed_in_one_go_keep_their_order():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        for key in ("a", "ctrl+j", "b", "enter", "c"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await answered(pilot)
        assert app.chat.conversation.messages[0].text == "a\nb"
        assert app.prompt.text == "c"


async def test_the_prompt_grows_to_eight_lines_and_no_more():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        heights = []
        for _ in range(12):
            heights.append(app.prompt.size.height)
            await pilot.press("x", "ctrl+j")
        assert heights == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]


async def test_many_pasted_lines_stay_one_message():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.post_message(events.Paste("def f():\r\n\treturn 1\r\n\r\nf()\x1b[31m"))
        await pilot.pause()
        assert app.prompt.text == "def f():\n\treturn 1\n\nf()[31m"
        await pilot.press("enter")
        await answered(pilot)
        assert app.chat.conversation.messages[0].text == "def f():\n\treturn 1\n\nf()[31m"


async def test_wide_characters_take_their_cells():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("한국어🎉")
        await pilot.pause()
        assert app.prompt.text == "한국어🎉"
        assert app.prompt.cursor_screen_offset.x - app.prompt.region.x == 8


async def test_typing_goes_on_while_an_answer_streams():
    async with StagedChat([Script("word " * 3000, token_s=0.04)], time_scale=1.0).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.readings.phase == "answering")
        await pilot.press(*"typed meanwhile")
        assert app.prompt.text == "typed meanwhile"
        assert app.chat.readings.is_busy
        await pilot.press("escape")
        await answered(pilot)
        assert app.prompt.text == "typed meanwhile"


async def test_the_view_follows_an_answer():
    async with StagedChat([LONG]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "go")
        await answered(pilot)
        await until(pilot, lambda: at_end(app))


async def test_scrolling_up_is_not_taken_away_while_streaming():
    async with StagedChat([Script(LONG, pause_after=90)]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: "Paragraph 44" in app.query_one(AnswerTurn).text and at_end(app))
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        where = app.query_one(Transcript).scroll_y
        assert not at_end(app)
        app.scripted.resume()
        await answered(pilot)
        await pilot.pause()
        assert app.query_one(Transcript).scroll_y == where
        for _ in range(8):
            await pilot.press("pagedown")
        assert at_end(app)


async def test_sending_goes_to_the_end():
    async with StagedChat([LONG]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "go")
        await answered(pilot)
        await pilot.press("pageup", "pageup")
        await say(pilot, "again")
        await answered(pilot)
        await until(pilot, lambda: at_end(app))


def at_end(app):
    transcript = app.query_one(Transcript)
    return transcript.scroll_y >= transcript.max_scroll_y > 0

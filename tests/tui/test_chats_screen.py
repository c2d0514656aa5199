"""Chats are kept as they happen, and opened again."""

import re
import time

import pytest
from staged import StagedChat, answered, opened, say, shown, until
from textual.widgets import Input

from localmoe.chat.history.history import History
from localmoe.chat.history.pen import Pen
from localmoe.chat.history.records import Chat
from localmoe.chat.message import Message
from localmoe.engine.script import Script
from localmoe.errors import OutOfMemoryError
from localmoe.events import Finished
from localmoe.tui.screens.chats import ChatsScreen
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.failure import Failure
from localmoe.tui.widgets.greeting import Greeting
from localmoe.tui.widgets.transcript import Transcript
from localmoe.tui.widgets.turns import NUM_SHOWN, Turns
from localmoe.tui.widgets.user_turn import UserTurn

WIDE = (120, 40)


def no_notice(message, hint):
    raise AssertionError(message)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


def keep(path, name, *texts, **more):
    """A chat of questions and answers in turn, kept before the screen is there."""
    with History(path, no_notice) as history:
        pen = Pen(history, Chat(name, **more))
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            pen.ask(question, "guide")
            pen.hear(Finished("stop", answer, "", 1, 0, 1, None, None, None))


def kept(path):
    """What is in the file: for each chat its title, and its turns with how they ended."""
    with History(path, no_notice) as history:
        return {chat.title: [(t.text, t.ending) for t in history.line(chat)] for chat in history.chats()}


async def chats_opened(pilot):
    await pilot.press("ctrl+o")
    await until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen) and pilot.app.screen._choices)


async def test_what_is_said_is_kept(path):
    async with StagedChat(["First.", "Second."], history=path).run_test() as pilot:
        await opened(pilot)
        for question in ("one?", "two?"):
            await say(pilot, question)
            await answered(pilot)
    assert kept(path) == {"one?": [("one?", "stop"), ("First.", "stop"), ("two?", "stop"), ("Second.", "stop")]}


async def test_a_stopped_answer_is_kept_as_it_is(path):
    async with StagedChat([Script("one two three four five", pause_after=3)], history=path).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.query(AnswerTurn) and "three" in app.query_one(AnswerTurn).text)
        await pilot.press("escape")
        await answered(pilot)
    assert kept(path) == {"Hm?": [("Hm?", "stop"), ("one two three", "cancelled")]}


async def test_leaving_in_the_middle_keeps_what_came(path):
    async with StagedChat([Script("one two three four five", pause_after=3)], history=path).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.query(AnswerTurn) and "three" in app.query_one(AnswerTurn).text)
    assert kept(path) == {"Hm?": [("Hm?", "stop"), ("one two three", "cancelled")]}


async def test_a_question_that_failed_is_not_part_of_the_chat(path):
    script = Script("one two", error=OutOfMemoryError("no memory"), error_after=0)
    async with StagedChat([script, "Better."], history=path).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.query(Failure))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.chat.conversation.messages) == 2)
    assert kept(path) == {"Hm?": [("Hm?", "stop"), ("Better.", "stop")]}


async def test_without_a_file_nothing_is_kept_and_that_is_said(tmp_path):
    async with StagedChat().run_test(notifications=True) as pilot:
        app = await opened(pilot)
        assert "not kept" in shown(app)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "--no-save" in shown(app))
        assert app.screen is app.chat


async def test_a_file_that_cannot_be_used_is_said_and_the_chat_goes_on(path):
    path.mkdir()
    async with StagedChat(["Yes."], history=path).run_test(size=WIDE, notifications=True) as pilot:
        app = await opened(pilot)
        await until(pilot, lambda: "chats cannot be kept" in shown(app))
        await say(pilot, "Hm?")
        await answered(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ChatsScreen) and "cannot be kept" in shown(app))


async def test_a_chat_is_opened_and_goes_on(path):
    keep(path, "aaaaaa", "one?", "First **answer**.", system="Be brief.", parameters={"seed": 7})
    keep(path, "bbbbbb", "other?", "Other.")
    async with StagedChat(["Second."], history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await chats_opened(pilot)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.screen is app.chat and app.query(AnswerTurn))
        assert "one?" in shown(app) and "First answer." in shown(app) and not app.query(Greeting)
        await say(pilot, "two?")
        await until(pilot, lambda: len(app.chat.conversation.messages) == 5)
        (request,) = app.scripted.requests
        assert request.conversation.messages[:3] == (
            Message("system", "Be brief."),
            Message("user", "one?"),
            Message("assistant", "First **answer**."),
        )
        assert request.sampling.seed == 7
    assert [text for text, _ in kept(path)["one?"]] == ["one?", "First **answer**.", "two?", "Second."]


async def test_a_chat_that_has_begun_is_shown_at_once(path):
    keep(path, "aaaaaa", "one?", "First.")
    with History(path, no_notice) as history:
        chat = history.chat("aaaaaa")
        begun = (chat, history.line(chat))
    async with StagedChat(["Second."], history=path, begun=begun).run_test() as pilot:
        app = await opened(pilot)
        assert "First." in shown(app)
        await say(pilot, "two?")
        await until(pilot, lambda: len(app.chat.conversation.messages) == 4)
    assert len(kept(path)["one?"]) == 4


async def test_an_answer_that_was_killed_says_so(path):
    with History(path, no_notice) as history:
        Pen(history, Chat("aaaaaa")).ask("Hm?", "guide")
        with history.writing() as db:
            db.execute("UPDATE turns SET text = 'Well, ', writer = '999999999.1' WHERE role = 'assistant'")
    async with StagedChat(history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await chats_opened(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "■ broken off: localmoe was ended" in shown(app))
        assert "Well," in shown(app)


async def test_a_new_chat_needs_no_question_when_the_old_one_is_kept(path):
    async with StagedChat(["First.", "Second."], history=path).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await answered(pilot)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: app.query(Greeting) and app.screen is app.chat)
        await say(pilot, "two?")
        await until(pilot, lambda: len(app.chat.conversation.messages) == 2)
        assert len({request.session for request in app.scripted.requests}) == 2
    assert set(kept(path)) == {"one?", "two?"}


async def test_a_new_chat_in_the_middle_of_an_answer_keeps_its_part(path):
    async with StagedChat([Script("one two three", pause_after=2), "Next."], history=path).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.query(AnswerTurn) and "two" in app.query_one(AnswerTurn).text)
        await pilot.press("ctrl+n")
        await opened(pilot)
        await say(pilot, "And?")
        await until(pilot, lambda: len(app.chat.conversation.messages) == 2)
    assert kept(path) == {
        "Hm?": [("Hm?", "stop"), ("one two", "cancelled")],
        "And?": [("And?", "stop"), ("Next.", "stop")],
    }


async def test_search_opens_the_turn_that_was_found(path):
    keep(path, "aaaaaa", *[text for n in range(120) for text in (f"question {n}", f"answer {n}")])
    keep(path, "bbbbbb", "other?", "Other.")
    async with StagedChat(history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await chats_opened(pilot)
        app.screen.query_one(Input).value = "answer 57"
        await until(pilot, lambda: len(app.screen._choices) == 1)
        assert "answer 57" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat and "answer 57" in shown(app))
        await pilot.pause()
        assert "earlier" not in shown(app) and "question 119" not in shown(app)
        assert "answer 57" in shown(app).partition("question 58")[0]
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "answer 119" in shown(app))


async def test_a_chat_is_renamed(path):
    keep(path, "aaaaaa", "one?", "First.")
    async with StagedChat(history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await chats_opened(pilot)
        await pilot.press("ctrl+r", "end", *"bis")
        await pilot.press("enter")
        await until(pilot, lambda: "Renamed to one?bis" in shown(app))
    assert list(kept(path)) == ["one?bis"]


async def test_a_chat_is_deleted_and_brought_back(path):
    keep(path, "aaaaaa", "one?", "First.")
    keep(path, "bbbbbb", "other?", "Other.")
    async with StagedChat(history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await chats_opened(pilot)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: "Ctrl+Z brings it back" in shown(app))
        assert list(kept(path)) == ["one?"]
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "It is back" in shown(app))
        assert set(kept(path)) == {"one?", "other?"}


async def test_deleting_the_chat_on_the_screen_begins_a_new_one(path):
    async with StagedChat(["First."], history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await answered(pilot)
        await chats_opened(pilot)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: "There is no chat yet" in shown(app) or "brings it back" in shown(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.query(Greeting))
    assert kept(path) == {}


async def test_escape_changes_nothing(path):
    keep(path, "aaaaaa", "one?", "First.")
    async with StagedChat(history=path).run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("draft")
        await chats_opened(pilot)
        await pilot.press("escape")
        assert app.screen is app.chat and app.prompt.text == "draft" and app.query(Greeting)


def long_chat(num_questions):
    answer = "answer {}: **bold**\n\n```python\nx = {}\n```\n\n" + "words " * 60
    return [text for number in range(num_questions) for text in (f"question {number}", answer.format(number, number))]


async def seconds_to_open(pilot, last):
    """From Enter in the list until the last answer is on the screen."""
    await chats_opened(pilot)
    start_s = time.monotonic()
    await pilot.press("enter")
    app = pilot.app
    await until(pilot, lambda: app.screen is app.chat and f"answer {last}" in shown(app))
    return time.monotonic() - start_s


async def test_two_thousand_messages_open_as_quickly_as_twenty(tmp_path):
    async def measure(num_questions):
        path = tmp_path / f"{num_questions}.db"
        keep(path, "aaaaaa", *long_chat(num_questions))
        async with StagedChat(history=path).run_test(size=WIDE) as pilot:
            app = await opened(pilot)
            times_s = [await seconds_to_open(pilot, num_questions - 1) for _ in range(2)]
            assert len(app.chat.conversation.messages) == 2 * num_questions
            assert len(app.query(AnswerTurn)) + len(app.query(UserTurn)) <= NUM_SHOWN
        return min(times_s)

    few_s, many_s = await measure(10), await measure(1000)
    assert many_s < 2 * few_s + 0.1, (few_s, many_s)


def begun_with(path, num_questions):
    """A chat that is on the screen from the start."""
    keep(path, "aaaaaa", *[text for n in range(num_questions) for text in (f"question {n}", f"answer {n}\n\nmore")])
    with History(path, no_notice) as history:
        chat = history.chat("aaaaaa")
        return chat, history.line(chat)


def questions_in(text):
    return {int(number) for number in re.findall(r"question (\d+)", text)}


async def test_scrolling_reaches_every_turn(path):
    async with StagedChat(begun=begun_with(path, 24)).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        turns = app.chat.query_one(Turns)
        for way, is_there in (("pageup", lambda: turns.first == 0), ("pagedown", lambda: turns.end == 48)):
            seen, last = set(), None
            while not is_there() or shown(app) != last:
                last = shown(app)
                seen |= questions_in(last)
                await pilot.press(way)
                await settled(pilot)
            assert seen == set(range(24)), way


async def settled(pilot):
    """Waits until nothing more is mounted."""
    await until(pilot, lambda: not pilot.app.chat.query_one(Transcript)._is_changing)


async def test_what_is_in_view_stays_in_its_line_while_others_come_and_go(path):
    async with StagedChat(begun=begun_with(path, 24)).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await settled(pilot)
        transcript, turns = app.chat.query_one(Transcript), app.chat.query_one(Turns)

        def lines():
            return {turn.text: turn.region.y for turn in app.query(UserTurn) if transcript.region.overlaps(turn.region)}

        for y in (1, 2, 0):  # near the top: more is mounted at once
            first = turns.first
            transcript.scroll_to(y=y, animate=False, immediate=True)
            app.screen._refresh_layout(scroll=True)
            before = lines()
            await settled(pilot)
            after = lines()
            assert turns.first < first and len(turns._shown) <= NUM_SHOWN
            assert before and {text: after.get(text) for text in before} == before


async def test_the_first_and_the_last_turn_are_one_key_away(path):
    async with StagedChat(begun=begun_with(path, 24)).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+home")
        await until(pilot, lambda: 0 in questions_in(shown(app)))
        await until(pilot, lambda: app.chat.query_one(Turns).first == 0)
        await pilot.press("ctrl+end")
        await until(pilot, lambda: 23 in questions_in(shown(app)))
        assert "earlier" not in shown(app)


async def test_a_new_question_is_shown_wherever_the_reader_was(path):
    async with StagedChat(["The new answer."], begun=begun_with(path, 24)).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+home")
        await until(pilot, lambda: 0 in questions_in(shown(app)))
        await say(pilot, "A new one?")
        await until(pilot, lambda: "The new answer." in shown(app))
        assert 23 in questions_in(shown(app)) and len(app.query(UserTurn)) <= NUM_SHOWN


async def test_an_answer_goes_on_while_the_reader_is_elsewhere(path):
    script = Script("one two three four", pause_after=3)
    async with StagedChat([script], begun=begun_with(path, 12)).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: "three" in shown(app))
        for _ in range(3):
            await pilot.press("pageup")
            await settled(pilot)
        assert "Hm?" not in shown(app)
        app.scripted.resume()
        await until(pilot, lambda: len(app.chat.conversation.messages) == 26)
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "one two three four" in shown(app))


async def test_another_answer_keeps_the_first_beside_it(path):
    async with StagedChat(["First.", "Second.", "Third."], history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+r")
        assert not app.query(AnswerTurn)
        await say(pilot, "one?")
        await answered(pilot)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Second." in shown(app) and app.chat.readings.phase == "idle")
        assert "First." not in shown(app) and len(app.query(UserTurn)) == 1
        assert [m.text for m in app.scripted.requests[1].conversation.messages] == ["one?"]
        await app.chat.run_action("next_branch")
        await until(pilot, lambda: "First." in shown(app))
        await say(pilot, "two?")
        await until(pilot, lambda: "Third." in shown(app) and app.chat.readings.phase == "idle")
    assert [text for text, _ in kept(path)["one?"]] == ["one?", "First.", "two?", "Third."]
    with History(path, no_notice) as history:
        assert "Second." in [turn.text for turn in history.tree(history.last())]


async def test_a_question_in_other_words_keeps_the_first_beside_it(path):
    async with StagedChat(["First.", "Second."], history=path).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await answered(pilot)
        app.prompt.insert("draft")
        await pilot.press("ctrl+up")
        assert app.prompt.text == "draft" and "First." in shown(app)
        app.prompt.text = ""
        await pilot.press("ctrl+up")
        await until(pilot, lambda: app.prompt.text == "one?" and "First." not in shown(app))
        await pilot.press("!", "enter")
        await until(pilot, lambda: "Second." in shown(app) and app.chat.readings.phase == "idle")
    assert [text for text, _ in kept(path)["one?"]] == ["one?!", "Second."]
    with History(path, no_notice) as history:
        assert [turn.text for turn in history.tree(history.last())] == ["one?", "First.", "one?!", "Second."]

"""A question that does not fit: the choice, its numbers, what is sent then and what is kept."""

from dataclasses import replace

from staged import GUIDE, StagedChat, answered, opened, say, shown, told, until
from textual.widgets import Static

from localmoe.chat.history.history import History
from localmoe.chat.history.records import Chat, Turn
from localmoe.tui.screens.misfit import MisfitScreen

SMALL = replace(GUIDE, context_limit=100)  # 12 of them for the answer; a message takes 3 tokens and its words


def words(count, word="w"):
    return " ".join([word] * count)


async def full(pilot):
    """Three questions and answers of 10 tokens: 60, and a question of 40 that does not fit behind them."""
    app = await opened(pilot)
    for number in range(3):
        await say(pilot, f"{number} {words(6)}")
        await answered(pilot)
    await say(pilot, f"long {words(36)}")
    await until(pilot, lambda: isinstance(app.screen, MisfitScreen))
    await pilot.pause()
    return app


def staged_chat(**more):
    return StagedChat([words(7, "a")], info=SMALL, **more)


async def test_what_does_not_fit_is_asked_about_with_numbers():
    async with staged_chat().run_test(size=(100, 30)) as pilot:
        app = await full(pilot)
        text = " ".join(str(part.content) for part in app.screen.query(Static))
        assert "Your question has 37 tokens and what was said before 63: 100 together." in text
        assert "The context holds 100, 12 of them for the answer. 12 are too many." in text
        assert "Leave out the first 4 turns: 60 tokens stay. The chat keeps them" in shown(app)
        assert "Shorten the question" in shown(app) and "Cancel: the question stays in the prompt" in shown(app)
        assert len(app.scripted.requests) == 3


async def test_cancel_sends_nothing_and_loses_nothing():
    for keys in (("escape",), ("end", "enter")):
        async with staged_chat().run_test() as pilot:
            app = await full(pilot)
            await pilot.press(*keys)
            await until(pilot, lambda app=app: app.screen is app.chat)
            assert app.prompt.text.startswith("long w") and len(app.scripted.requests) == 3


async def test_turns_are_left_out_of_what_is_read_and_of_nothing_else(tmp_path):
    async with staged_chat(history=tmp_path / "chats.db").run_test(size=(120, 40)) as pilot:
        app = await full(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.scripted.requests) == 4)
        await answered(pilot)
        read = app.scripted.requests[-1].conversation
        left_out = app.chat.readings.unread_turns
        assert left_out in (2, 4) and read.num_turns == 7 - left_out
        assert app.chat.conversation.num_turns == 8
        assert f"made without the first {left_out} turns: they did not fit" in shown(app)
        assert f"{left_out} turns left out" in shown(app)
        with History(tmp_path / "chats.db", print) as history:
            turns = history.line(history.last())
            assert len(turns) == 8 and turns[-1].unread_turns == left_out and turns[-3].unread_turns == 0
            begun = history.last(), turns
    async with staged_chat(history=tmp_path / "chats.db", begun=begun).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        await until(pilot, lambda: f"{left_out} turns left out" in shown(app))
        assert f"made without the first {left_out} turns" in shown(app)
        await say(pilot, "ok")
        await answered(pilot)
        assert app.scripted.requests[-1].conversation.num_turns == 9 - left_out


async def test_another_answer_is_made_without_the_same_turns_and_an_edit_asks_again():
    async with staged_chat().run_test() as pilot:
        app = await full(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.scripted.requests) == 4)
        await answered(pilot)
        left_out = app.chat.readings.unread_turns
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(app.scripted.requests) == 5 and app.chat.readings.phase == "idle")
        assert app.scripted.requests[-1].conversation.num_turns == 7 - left_out
        await pilot.press("ctrl+up")
        await until(pilot, lambda: app.chat.readings.unread_turns == 0)
        app.prompt.text = "short"
        await pilot.press("enter")
        await until(pilot, lambda: len(app.scripted.requests) == 6)
        assert app.scripted.requests[-1].conversation.num_turns == 7


async def test_a_shortened_question_is_looked_at_first_and_can_be_undone():
    async with staged_chat().run_test() as pilot:
        app = await full(pilot)
        whole = app.prompt.text
        await pilot.press("down", "enter")
        await until(pilot, lambda: "cut here" in app.prompt.text)
        assert len(app.scripted.requests) == 3 and "Shortened" in told(app)
        await pilot.press("ctrl+z")
        assert app.prompt.text == whole
        await pilot.press("ctrl+y")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, MisfitScreen))
        await pilot.press("down", "enter")
        await until(pilot, lambda: "cut here" in app.prompt.text)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.scripted.requests) == 4)
        assert app.scripted.count_tokens(app.scripted.requests[-1].conversation) <= 88


async def test_what_fits_without_room_for_an_answer_may_be_sent_all_the_same():
    async with staged_chat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, words(90))
        await until(pilot, lambda: isinstance(app.screen, MisfitScreen))
        await pilot.pause()
        assert "7 tokens are left for the answer" in shown(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: len(app.scripted.requests) == 1)
        await answered(pilot)


async def test_a_question_that_is_too_long_alone_offers_no_leaving_out():
    async with staged_chat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await answered(pilot)
        await say(pilot, words(200))
        await until(pilot, lambda: isinstance(app.screen, MisfitScreen))
        await pilot.pause()
        assert "Leave out" not in shown(app) and "Send it all" not in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "cut here" in app.prompt.text)


async def test_a_new_chat_meanwhile_sends_nothing():
    async with staged_chat().run_test() as pilot:
        app = await full(pilot)
        await app.chat.show_chat()
        await pilot.press("enter")
        await pilot.pause()
        assert len(app.scripted.requests) == 3 and app.prompt.text.startswith("long")


async def test_the_meter_counts_a_chat_that_was_opened():
    async with staged_chat().run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        await say(pilot, "one two three")
        await answered(pilot)
        await until(pilot, lambda: "13 of 100" in shown(app))
        app.prompt.insert("four five")
        await until(pilot, lambda: "13 + 2 of 100" in shown(app))


async def test_nonsense_in_an_imported_chat_leaves_nothing_out():
    turns = (
        Turn("user", "one", id=1),
        Turn("assistant", "two", figures={"unread_turns": 99}, id=2, parent=1),
        Turn("user", "three", id=3, parent=2),
        Turn("assistant", "four", figures={"unread_turns": "x"}, id=4, parent=3),
    )
    for shown_turns in (turns[:2], turns):
        async with StagedChat(begun=(Chat("a"), shown_turns)).run_test() as pilot:
            app = await opened(pilot)
            await say(pilot, "five")
            await answered(pilot)
            assert app.scripted.requests[-1].conversation.num_turns == len(shown_turns) + 1

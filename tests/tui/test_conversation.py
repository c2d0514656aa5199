"""What is said, in what order, and what becomes of it."""

from staged import DEEPSEEK, StagedChat, answered, opened, say, shown, until

from localmoe.chat.message import Message
from localmoe.engine.script import Script
from localmoe.errors import ModelNotFoundError, OutOfMemoryError
from localmoe.events import Loading
from localmoe.settings import Settings
from localmoe.tui.widgets.activity import Activity
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.failure import Failure
from localmoe.tui.widgets.greeting import Greeting
from localmoe.tui.widgets.question import Question
from localmoe.tui.widgets.thought import Thought
from localmoe.tui.widgets.user_turn import UserTurn

FAILS = Script(error=OutOfMemoryError("the context is full", "start a new chat"))
LOADING = Loading("reading", 300, 688, 10.0, 38.0)


def held(text="one two three four five six seven eight", after=4, **more):
    return Script(text, pause_after=after, **more)


async def streaming(pilot, question="Hello?"):
    app = await opened(pilot)
    await say(pilot, question)
    await until(pilot, lambda: app.query(AnswerTurn) and "four" in app.query_one(AnswerTurn).text)
    return app


async def test_a_question_is_answered():
    async with StagedChat(["Hello **there**."]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Who are you?")
        await answered(pilot)
        assert app.chat.conversation.messages == (
            Message("user", "Who are you?"),
            Message("assistant", "Hello **there**."),
        )
        assert "Who are you?" in shown(app) and "Hello there." in shown(app)
        assert not app.query(Greeting)
        assert app.prompt.text == ""


async def test_the_next_request_carries_the_whole_conversation_in_one_session():
    async with StagedChat(["First.", "Second."]).run_test() as pilot:
        app = await opened(pilot)
        for question in ("one?", "two?"):
            await say(pilot, question)
            await answered(pilot)
        first, second = app.scripted.requests
        assert [m.text for m in second.conversation.messages] == ["one?", "First.", "two?"]
        assert first.session == second.session


async def test_the_models_sampling_is_used_unless_the_user_chose_another():
    async with StagedChat(settings=Settings(temperature=0.0, max_tokens=7, think=False)).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await answered(pilot)
        (request,) = app.scripted.requests
        assert (request.sampling.temperature, request.sampling.top_p) == (0.0, app.scripted.info.sampling.top_p)
        assert (request.max_tokens, request.think) == (7, False)


async def test_an_empty_prompt_sends_nothing():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "  \n ")
        assert not app.scripted.requests


async def test_a_thought_is_kept_apart_with_its_length():
    async with StagedChat([Script("Answer.", "I think so.", token_s=0.5)]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await answered(pilot)
        assert app.chat.conversation.messages[-1] == Message("assistant", "Answer.", "I think so.")
        assert "▸ Thought 3 tok, 1.5 s" in shown(app)
        assert "I think so." not in shown(app)


async def test_while_it_thinks_the_length_grows():
    async with StagedChat([Script("Answer.", "a b c d e f", token_s=0.5, pause_after=4)]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: "▸ Thinking 4 tok, 2.0 s" in shown(app))


async def test_no_thought_no_line():
    async with StagedChat(["Answer."]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await answered(pilot)
        assert "Thought" not in shown(app)
        assert not app.query_one(Thought).display


async def test_a_message_sent_while_an_answer_comes_waits_where_it_was_written():
    async with StagedChat([held(), "Second."]).run_test() as pilot:
        app = await streaming(pilot)
        await say(pilot, "And then?")
        await pilot.pause()
        assert app.prompt.text == "And then?"
        assert "Sent after this answer" in shown(app)
        app.scripted.resume()
        await until(pilot, lambda: len(app.chat.conversation.messages) == 4)
        assert app.chat.conversation.messages[2] == Message("user", "And then?")
        assert app.prompt.text == ""


async def test_typing_takes_a_waiting_message_back():
    async with StagedChat([held()]).run_test() as pilot:
        app = await streaming(pilot)
        await say(pilot, "And then")
        await pilot.press("x")
        app.scripted.resume()
        await answered(pilot)
        await pilot.pause(0.2)
        assert app.prompt.text == "And thenx"
        assert len(app.chat.conversation.messages) == 2
        assert "Sent after" not in shown(app)


async def test_esc_sends_a_waiting_message_at_once():
    async with StagedChat([held(), "Second."]).run_test() as pilot:
        app = await streaming(pilot)
        await say(pilot, "No: shorter")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.chat.conversation.messages) == 4)
        assert app.chat.conversation.messages[1].text == "one two three four"


async def test_a_message_sent_while_the_model_opens_waits_for_it():
    async with StagedChat(["Here I am."], loading=[LOADING]).run_test() as pilot:
        app = pilot.app
        await say(pilot, "Are you there?")
        await until(pilot, lambda: "Sent when the model is open" in shown(app))
        app.may_open.set()
        await until(pilot, lambda: len(app.chat.conversation.messages) == 2)


async def test_esc_takes_back_what_waits_for_the_model():
    async with StagedChat(loading=[LOADING]).run_test() as pilot:
        app = pilot.app
        await say(pilot, "Are you there?")
        await pilot.press("escape")
        app.may_open.set()
        await opened(pilot)
        await pilot.pause(0.2)
        assert not app.scripted.requests and app.prompt.text == "Are you there?"


async def test_a_stopped_answer_stays_and_says_so():
    async with StagedChat([held()]).run_test() as pilot:
        app = await streaming(pilot)
        await pilot.press("escape")
        await answered(pilot)
        assert app.chat.conversation.messages[-1].text == "one two three four"
        assert "one two three four" in shown(app) and "■ stopped" in shown(app)


async def test_a_stop_in_the_middle_of_prefill_works_and_the_chat_goes_on():
    async with StagedChat([Script("Never.", pause_in_prefill=1), "Second."]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await until(pilot, lambda: app.chat.readings.phase == "prefill")
        await pilot.press("escape")
        await answered(pilot)
        assert "■ stopped" in shown(app)
        await say(pilot, "two?")
        await until(pilot, lambda: "Second." in shown(app))


async def test_an_answer_cut_at_its_limit_says_so():
    async with StagedChat(settings=Settings(max_tokens=2)).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await answered(pilot)
        assert "as many tokens as were allowed" in shown(app)


async def test_a_full_context_says_so():
    async with StagedChat([Script("a b c", reason="context")]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "one?")
        await answered(pilot)
        assert "the context is full. What to leave out" in shown(app)


async def test_a_failure_is_shown_and_gives_the_question_back():
    async with StagedChat([FAILS, "Better."]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "one?\ntwo?")
        await until(pilot, lambda: app.query(Failure))
        screen = shown(app)
        assert "the context is full" in screen and "start a new chat" in screen
        assert app.prompt.text == "one?\ntwo?"
        assert app.chat.conversation.messages == ()
        await pilot.press("enter")
        await until(pilot, lambda: "Better." in shown(app))
        assert [m.text for m in app.chat.conversation.messages] == ["one?\ntwo?", "Better."]


async def test_a_failure_does_not_touch_a_newer_draft():
    script = Script("one two three four five", error=OutOfMemoryError("no memory"), error_after=4, pause_after=4)
    async with StagedChat([script]).run_test() as pilot:
        app = await streaming(pilot, "old question")
        await say(pilot, "new draft")
        app.scripted.resume()
        await until(pilot, lambda: app.query(Failure))
        assert app.prompt.text == "new draft"
        screen = shown(app)
        assert "old question" in screen and "one two three four" in screen and "■ broken off" in screen


async def test_a_model_that_cannot_be_opened_is_explained():
    error = ModelNotFoundError("deepseek-v3.1 is not on this machine", "download it with: hf download ...")
    async with StagedChat(fails=error, info=DEEPSEEK).run_test() as pilot:
        app = pilot.app
        app.prompt.insert("a long question")
        await until(pilot, lambda: app.query(Failure))
        assert "deepseek-v3.1 is not on this machine" in shown(app) and "hf download" in shown(app)
        assert "Enter opens it" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.query(Failure)) == 2)
        assert app.prompt.text == "a long question" and "Sent when the model is open" not in shown(app)


async def test_loading_and_prefill_show_how_far_they_are():
    script = Script("Done.", prompt_tokens=1000, prefill_ticks=10, prefill_tick_s=1.0, pause_in_prefill=3)
    async with StagedChat([script], loading=[LOADING]).run_test() as pilot:
        app = pilot.app
        await until(pilot, lambda: "300 B of 688 B" in shown(app))
        assert "43 %   38 s left" in shown(app)
        app.may_open.set()
        await opened(pilot)
        await say(pilot, "one?")
        await until(pilot, lambda: "Reading 300 of 1,000 tok  ▓▓▓░░░░░░░  30 %   7 s left" in shown(app))
        app.scripted.resume()
        await answered(pilot)
        assert str(app.query_one(Activity).render()).strip() == ""


async def test_the_greeting_says_plainly_what_the_demo_is():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        screen = shown(app)
        assert "guide · a tiny demonstration model (12 M)" in screen
        assert "/chats opens earlier ones" in screen or "it ends with the program" in screen


async def test_the_greeting_of_a_real_model_does_not_call_it_a_demo():
    async with StagedChat(info=DEEPSEEK).run_test() as pilot:
        app = await opened(pilot)
        assert "deepseek-v3.1 · 671 B, 37 B active, FP8" in shown(app)
        assert "demonstration" not in shown(app) and "-m NAME" not in shown(app)


async def test_a_question_to_try_is_asked_by_a_click():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.click(Question)
        await answered(pilot)
        assert app.chat.conversation.messages[0].text == "What can you do?"
        assert app.focused is app.prompt


async def test_a_question_to_try_is_asked_by_tab_and_enter():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("tab", "down", "enter")
        await answered(pilot)
        assert app.chat.conversation.messages[0].text == "How do I run a real model?"


async def test_a_question_to_try_does_not_overwrite_a_draft():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("my draft")
        await pilot.click(Question)
        await pilot.pause()
        assert app.prompt.text == "my draft" and not app.query(UserTurn)

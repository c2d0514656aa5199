"""Several chats in tabs: each streams, each is kept, and none is lost by closing one."""

from staged import StagedChat, answered, opened, say, shown, told, until

from localmoe.chat.history.history import History
from localmoe.engine.script import Script
from localmoe.tui.screens.chats import ChatsScreen
from localmoe.tui.screens.confirm import ConfirmScreen
from localmoe.tui.tabs import Head
from localmoe.tui.widgets.tab_bar import drawn

SLOW = Script("one two three four", pause_after=2)


def states(app):
    return [head.state for head in app.tabs.heads()]


async def test_a_single_tab_has_no_bar():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        assert not app.chat.query_one("TabBar").display
        await pilot.press("f8")
        await until(pilot, lambda: "1 new chat" in shown(app) and "2 new chat" in shown(app))


async def test_a_new_tab_has_the_model_at_once_and_answers_by_itself():
    async with StagedChat(lambda request: request.conversation.messages[-1].text.upper()).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "first?")
        await answered(pilot)
        await pilot.press("f8")
        await opened(pilot)
        await say(pilot, "second?")
        await answered(pilot)
        assert "SECOND?" in shown(app) and "FIRST?" not in shown(app)
        assert [head.title for head in app.tabs.heads()] == ["first?", "second?"]
        await pilot.press("ctrl+pageup")
        await until(pilot, lambda: "FIRST?" in shown(app) and "SECOND?" not in shown(app))
        assert len({request.session for request in app.scripted.requests}) == 2
        assert len(app.scripted.requests[1].conversation.messages) == 1


async def test_an_answer_goes_on_while_another_tab_is_shown_and_its_end_is_told():
    async with StagedChat([SLOW]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "slow?")
        await until(pilot, lambda: "one two" in shown(app))
        first = app.chat
        await pilot.press("f8")
        await until(pilot, lambda: states(app) == ["busy", "idle"] and "◐" in shown(app))
        app.scripted.resume()
        await until(pilot, lambda: states(app) == ["news", "idle"] and "●" in shown(app))
        assert first.conversation.messages[-1].text == "one two three four"
        await pilot.press("ctrl+pagedown")
        await until(pilot, lambda: "one two three four" in shown(app) and states(app) == ["idle", "idle"])


async def test_two_tabs_answer_at_once_and_the_second_is_told_its_place():
    async with StagedChat([SLOW, "the other"]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "slow?")
        await until(pilot, lambda: "one two" in shown(app))
        await pilot.press("f8")
        await opened(pilot)
        await say(pilot, "quick?")
        await until(pilot, lambda: "Waiting, 1 before this one" in shown(app) and states(app) == ["busy", "waiting"])
        await pilot.press("escape")
        await until(pilot, lambda: states(app)[1] == "idle")
        assert states(app)[0] == "busy"
        app.scripted.resume()
        await until(pilot, lambda: states(app)[0] == "news")


async def test_every_tab_is_a_chat_of_its_own_in_the_file(tmp_path):
    path = tmp_path / "chats.db"
    async with StagedChat(["A."], history=path).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "first?")
        await answered(pilot)
        await pilot.press("f8")
        await opened(pilot)
        await say(pilot, "second?")
        await answered(pilot)
        await pilot.press("ctrl+w")
        await until(pilot, lambda: len(app.tabs) == 1)
    with History(path, lambda *trouble: None) as history:
        assert sorted(chat.title for chat in history.chats()) == ["first?", "second?"]
        assert all(len(history.line(chat)) == 2 for chat in history.chats())


async def test_closing_a_tab_that_answers_asks_first_and_keeps_what_came(tmp_path):
    path = tmp_path / "chats.db"
    async with StagedChat([SLOW, "B."], history=path).run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("f8")
        await opened(pilot)
        await say(pilot, "slow?")
        await until(pilot, lambda: "one two" in shown(app))
        await pilot.press("ctrl+w")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("escape")
        assert len(app.tabs) == 2
        await pilot.press("ctrl+w")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.tabs) == 1)
        await say(pilot, "and now?")
        await until(pilot, lambda: "B." in shown(app))
    with History(path, lambda *trouble: None) as history:
        kept = {chat.title: history.line(chat)[-1] for chat in history.chats()}
    assert kept["slow?"].text == "one two" and kept["slow?"].ending == "cancelled"


async def test_a_tab_that_is_not_kept_is_not_closed_without_a_question():
    async with StagedChat(["A."]).run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("f8")
        await opened(pilot)
        await say(pilot, "first?")
        await answered(pilot)
        await pilot.press("ctrl+w")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and "not kept" in shown(app))


async def test_the_first_tab_can_be_closed_and_the_engine_goes_on():
    async with StagedChat(["A."]).run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("f8", "ctrl+pageup", "ctrl+w")
        await until(pilot, lambda: len(app.tabs) == 1)
        await opened(pilot)
        await say(pilot, "still there?")
        await answered(pilot)
        assert "A." in shown(app)


async def test_with_words_in_the_prompt_its_key_deletes_one_as_ever():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("f8")
        app.prompt.insert("two words")
        await pilot.press("ctrl+w")
        assert app.prompt.text == "two " and len(app.tabs) == 2


async def test_the_only_tab_stays():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+w")
        await until(pilot, lambda: "This is the only tab" in told(app))


async def test_a_draft_stays_in_its_tab():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("a draft")
        await pilot.press("f8")
        assert app.prompt.text == ""
        await pilot.press("ctrl+pagedown")
        assert app.prompt.text == "a draft" and app.prompt.has_focus


async def test_a_tab_is_shown_by_its_number_and_by_a_click():
    async with StagedChat().run_test(size=(100, 30)) as pilot:
        app = await opened(pilot)
        await pilot.press("f8", "f8")
        assert [head.is_current for head in app.tabs.heads()] == [False, False, True]
        await say(pilot, "/tab 2")
        await until(pilot, lambda: app.tabs.heads()[1].is_current)
        await say(pilot, "/tab 9")
        await until(pilot, lambda: "There is no tab 9" in told(app))
        await until(pilot, lambda: app.chat.query_one("TabBar").display)
        await pilot.click("TabBar", offset=(3, 0))
        await until(pilot, lambda: app.tabs.heads()[0].is_current)


async def test_there_is_a_most_number_of_tabs(monkeypatch):
    monkeypatch.setattr("localmoe.tui.screens.tabbed_chat.MOST_TABS", 3)
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press(*["f8"] * 3)
        await until(pilot, lambda: "There are 3 tabs already" in told(app))
        assert len(app.tabs) == 3


async def two_kept_tabs(pilot):
    app = await opened(pilot)
    for question in ("first?", "second?"):
        await say(pilot, question)
        await answered(pilot)
        if question == "first?":
            await pilot.press("f8")
            await opened(pilot)
    return app


async def test_a_chat_that_is_open_in_another_tab_is_shown_there(tmp_path):
    async with StagedChat(["A."], history=tmp_path / "chats.db").run_test() as pilot:
        app = await two_kept_tabs(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "first?" in shown(app) and isinstance(app.screen, ChatsScreen))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.tabs.heads()[0].is_current)
        assert [head.title for head in app.tabs.heads()] == ["first?", "second?"]


async def test_a_chat_that_is_deleted_leaves_its_tab(tmp_path):
    async with StagedChat(["A."], history=tmp_path / "chats.db").run_test() as pilot:
        app = await two_kept_tabs(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ChatsScreen) and len(app.screen._choices) == 2)
        await pilot.press("down", "ctrl+d")
        await until(pilot, lambda: app.screen.deleted)
        await pilot.press("escape")
        await until(pilot, lambda: [head.title for head in app.tabs.heads()] == ["", "second?"])


def test_titles_are_cut_to_what_fits():
    heads = [Head("a very long first question", "idle", True), *[Head("", "busy", False)] * 5]
    line = drawn(heads, 80).plain
    assert len(line) <= 80 and " 1 a ver" in line and "…" in line and " 6 new" in line

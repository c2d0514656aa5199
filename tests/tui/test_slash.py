"""Every command behind a slash, what is said of those that are none, and how text may begin with one."""

import json

import pytest
from staged import GUIDE, StagedChat, answered, opened, say, shown, until
from textual.widgets import Static

from localmoe.chat.history.history import History
from localmoe.chat.message import Message
from localmoe.engine.script import Script
from localmoe.settings import Settings
from localmoe.tui.screens.keys import KeysScreen
from localmoe.tui.screens.page import PageScreen
from localmoe.tui.slash import SLASHES, as_text, parse
from localmoe.tui.widgets.suggestions import Suggestions
from localmoe.tui.widgets.thought import Thought
from localmoe.tui.widgets.user_turn import UserTurn

WIDE = (120, 40)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


async def talked(pilot, question="Hm?"):
    await opened(pilot)
    await say(pilot, question)
    return await answered(pilot)


async def obey(pilot, text):
    """Pastes a command whole and presses Enter."""
    app = pilot.app
    app.prompt.insert(text)
    await pilot.pause()
    app.chat.query_one(Suggestions).offer([])
    await pilot.press("enter")
    await pilot.pause()


def page(app):
    return "\n".join(str(part.content) for part in app.screen.query(Static))


def last_request(app):
    return app.scripted.requests[-1]


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/HELP", "HELP", ""),
        ("/set temperature 0.2", "set", "temperature 0.2"),
        ("/system You are\ntwo lines. ", "system", "You are\ntwo lines."),
        ("/nothing at all", "nothing", "at all"),
    ],
)
def test_a_command_is_a_word_behind_a_slash(text, name, argument):
    typed = parse(text)
    assert (typed.name, typed.argument) == (name, argument)


@pytest.mark.parametrize("text", ["/etc/hosts: what is it?", " /help", "// a comment", "/", "a /help", "/* c */"])
def test_other_text_with_a_slash_is_text(text):
    assert parse(text) is None


def test_a_space_before_the_slash_is_not_sent():
    assert as_text(" /help") == "/help"
    assert as_text("  a") == "  a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/modle", "/model"),
        ("/regenerate", "/regen"),
        ("/exit", "/quit"),
        ("/xyz", "/help"),
        ("/stats now", "by itself"),
    ],
)
def test_what_is_wrong_is_said_with_a_way_out(text, said):
    assert said in parse(text).trouble
    assert len(parse(text).trouble) < 76


def test_the_words_of_the_specification_are_there():
    wanted = "help model system set think regen edit clear save export attach stats quit"
    assert set(wanted.split()) <= set(SLASHES)


async def test_an_unknown_command_is_not_sent_and_stays():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await obey(pilot, "/modle kimi")
        assert "No /modle: /model?" in shown(app)
        assert app.prompt.text == "/modle kimi" and not app.scripted.requests
        await pilot.press("x")
        await pilot.pause()
        assert "No /modle" not in shown(app)


async def test_text_may_begin_with_a_slash():
    async with StagedChat().run_test() as pilot:
        app = await talked(pilot, " /help is a command")
        assert app.chat.conversation.messages[0].text == "/help is a command"
        await talked(pilot, "/etc/hosts is a file")
        assert app.chat.conversation.messages[2].text == "/etc/hosts is a file"


async def test_slash_help_shows_keys_and_commands():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await obey(pilot, "/help")
        assert isinstance(app.screen, KeysScreen)
        assert app.prompt.text == ""


async def test_slash_system_belongs_to_the_chat_and_is_kept(folder):
    async with StagedChat(history=folder / "chats.db").run_test(notifications=True) as pilot:
        app = await talked(pilot)
        await obey(pilot, "/system Answer in verse.\nAlways.")
        await until(pilot, lambda: "system prompt" in shown(app))
        await talked(pilot, "again")
        first, _ = last_request(app).conversation.messages[0], None
        assert first == Message("system", "Answer in verse.\nAlways.")
        chat_id = app.kept.chat.id
        await obey(pilot, "/clear")
        await until(pilot, lambda: not app.chat.conversation.num_turns)
        assert not app.chat.conversation.system
    with History(folder / "chats.db", print) as history:
        assert history.chat(chat_id).system == "Answer in verse.\nAlways."


async def test_a_system_prompt_without_a_further_question_is_kept_at_once(folder):
    async with StagedChat(history=folder / "chats.db").run_test() as pilot:
        app = await talked(pilot)
        await obey(pilot, "/system Be brief.")
        chat_id = app.kept.chat.id
    with History(folder / "chats.db", print) as history:
        assert history.chat(chat_id).system == "Be brief."


async def test_slash_system_alone_brings_it_to_be_changed():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await obey(pilot, "/system Be brief.")
        await obey(pilot, "/system")
        assert app.prompt.text == "/system Be brief."
        app.prompt.text = ""
        await obey(pilot, "/system none")
        assert app.kept.chat.system == "" and app.chat.conversation.messages == ()


async def test_slash_set_belongs_to_the_chat_and_is_kept(folder):
    settings = Settings(temperature=0.9, origins={"temperature": "flag"})
    async with StagedChat(settings=settings, history=folder / "chats.db").run_test(notifications=True) as pilot:
        app = await talked(pilot)
        assert last_request(app).sampling.temperature == 0.9
        await obey(pilot, "/set temperature 0.2")
        await until(pilot, lambda: "temperature: 0.2, from this chat" in shown(app))
        await obey(pilot, "/set seed=7")
        await talked(pilot, "again")
        assert (last_request(app).sampling.temperature, last_request(app).sampling.seed) == (0.2, 7)
        await obey(pilot, "/set temperature default")
        await talked(pilot, "again")
        assert last_request(app).sampling.temperature == 0.9
        chat_id = app.kept.chat.id
    with History(folder / "chats.db", print) as history:
        assert history.chat(chat_id).parameters == {"seed": 7}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/set temperature hot", "a number from 0 to 100"),
        ("/set top_p 0", "above 0 and at most 1"),
        ("/set threads 3", "A chat has no parameter threads"),
        ("/set think perhaps", "true or false"),
    ],
)
async def test_a_bad_value_is_refused_with_what_is_allowed(text, said):
    async with StagedChat().run_test(notifications=True, size=WIDE) as pilot:
        app = await opened(pilot)
        before = app.kept.settings
        await obey(pilot, text)
        await until(pilot, lambda: said.split()[0] in shown(app))
        assert any(said in f"{n.title} {n.message}" for n in app._notifications)
        assert app.kept.settings == before


async def test_slash_set_alone_shows_what_is_in_force():
    settings = Settings(top_p=0.5, origins={"top_p": "config.toml"})
    async with StagedChat(settings=settings).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await obey(pilot, "/set seed 7")
        await obey(pilot, "/set")
        assert isinstance(app.screen, PageScreen)
        lines = page(app)
        assert "0.5, from config.toml" in lines and "7, from this chat" in lines
        assert "the default, from the model" in lines


async def test_slash_think_goes_round_or_where_it_is_told():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        seen = []
        for text in ("/think", "/think", "/think", "/think off", "/think on", "/think default"):
            await obey(pilot, text)
            seen.append(app.kept.settings.think)
        assert seen == [True, False, None, False, True, None]


async def test_slash_regen_edit_and_clear():
    async with StagedChat(["First.", "Second."]).run_test() as pilot:
        app = await talked(pilot)
        await obey(pilot, "/regen")
        await until(pilot, lambda: len(app.scripted.requests) == 2 and app.chat.readings.phase == "idle")
        assert app.chat.conversation.messages[-1].text == "Second."
        await obey(pilot, "/edit")
        assert app.prompt.text == "Hm?" and not app.query(UserTurn)


async def test_slash_clear_begins_a_new_chat(folder):
    async with StagedChat(history=folder / "chats.db").run_test() as pilot:
        app = await talked(pilot)
        before = app.kept.chat.id
        await obey(pilot, "/clear")
        assert app.kept.chat.id != before and not app.query(UserTurn)


async def test_slash_save_names_the_chat(folder):
    async with StagedChat(history=folder / "chats.db").run_test(notifications=True) as pilot:
        app = await talked(pilot)
        await obey(pilot, "/save Of experts")
        await until(pilot, lambda: "Of experts" in shown(app))
        title = await app.kept.read(lambda history: history.chat(app.kept.chat.id).title)
        assert title == "Of experts"


async def test_slash_save_says_when_nothing_is_kept():
    async with StagedChat().run_test(notifications=True) as pilot:
        app = await talked(pilot)
        await obey(pilot, "/save")
        await until(pilot, lambda: "/export" in shown(app))


@pytest.mark.parametrize("name", ["", "talk.md", "talk.json"])
async def test_slash_export_writes_a_new_file_and_never_over_one(folder, name):
    async with StagedChat(history=folder / "chats.db").run_test(notifications=True) as pilot:
        app = await talked(pilot)
        await obey(pilot, f"/export {name}")
        path = folder / (name or "hm.md")
        await until(pilot, path.exists)
        text = path.read_text()
        assert "Hello from a script." in text
        assert name != "talk.json" or json.loads(text)["chats"][0]["turns"][0]["text"] == "Hm?"
        path.write_text("mine")
        await obey(pilot, f"/export {name}")
        await until(pilot, lambda: "is there already" in shown(app))
        assert path.read_text() == "mine"


async def test_slash_export_of_a_chat_that_is_not_kept(folder):
    async with StagedChat().run_test() as pilot:
        await talked(pilot)
        await obey(pilot, "/export talk.md")
        await until(pilot, (folder / "talk.md").exists)
        assert "Hello from a script." in (folder / "talk.md").read_text()


async def test_slash_export_says_where_it_cannot_write():
    async with StagedChat().run_test(notifications=True) as pilot:
        app = await talked(pilot)
        await obey(pilot, "/export none/talk.md")
        await until(pilot, lambda: "cannot be written" in shown(app))
        await obey(pilot, "/export talk.pdf")
        await until(pilot, lambda: "neither .md nor .json" in shown(app))


async def test_slash_attach_names_the_file_in_the_prompt(folder):
    (folder / "notes.md").write_text("one two three")
    async with StagedChat().run_test(notifications=True) as pilot:
        app = await opened(pilot)
        await obey(pilot, "/attach notes.md")
        await until(pilot, lambda: app.prompt.text == "@notes.md ")
        app.prompt.text = ""
        await obey(pilot, "/attach nots.md")
        await until(pilot, lambda: "there is no file nots.md" in shown(app))


async def test_slash_stats_shows_the_last_figures():
    script = Script("one two three four", prompt_tokens=1000, prefill_ticks=10, prefill_tick_s=0.1, token_s=0.08)
    async with StagedChat([script]).run_test() as pilot:
        app = await talked(pilot)
        await obey(pilot, "/stats")
        assert "1,000 tok/s" in page(app) and "12.5 tok/s" in page(app) and "1,004 of 4,096 tok" in page(app)


async def test_slash_thoughts_and_panel():
    async with StagedChat([Script("Yes.", "Hm.")]).run_test(size=WIDE) as pilot:
        app = await talked(pilot)
        await obey(pilot, "/thoughts")
        assert app.query_one(Thought).is_open
        await obey(pilot, "/panel")
        assert not app.query_one("EnginePanel").display


async def test_slash_theme_takes_a_name():
    async with StagedChat().run_test(notifications=True) as pilot:
        app = await opened(pilot)
        await obey(pilot, "/theme localmoe-light")
        assert app.theme == "localmoe-light"
        await obey(pilot, "/theme none")
        await until(pilot, lambda: "No theme is called none" in shown(app))


async def test_slash_quit_leaves_also_while_streaming():
    async with StagedChat([Script("one two three four", pause_after=2)]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.chat.readings.phase == "answering")
        await obey(pilot, "/quit")
        assert app._exit


async def test_a_command_while_streaming_is_done_at_once():
    async with StagedChat([Script("one two three four", pause_after=2)]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.chat.readings.phase == "answering")
        await obey(pilot, "/system Be brief.")
        assert app.kept.chat.system == "Be brief." and app.prompt.text == ""
        app.scripted.resume()
        await answered(pilot)
        assert [message.role for message in app.chat.conversation.messages] == ["system", "user", "assistant"]


async def test_typing_a_slash_lists_commands_and_tab_completes():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("/")
        await until(pilot, lambda: "/attach FILE" in shown(app))
        await pilot.press("s")
        await until(pilot, lambda: "/save TITLE" in shown(app) and "/attach" not in shown(app).split("❯")[0][-400:])
        await pilot.press("down", "tab")
        assert app.prompt.text == "/set "
        await until(pilot, lambda: "temperature" in shown(app))
        await pilot.press("t", "e", "tab")
        await until(pilot, lambda: app.prompt.text == "/set temperature ")


async def test_enter_does_the_marked_command():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press(*"/hel")
        await until(pilot, lambda: app.chat.query_one(Suggestions).is_open)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, KeysScreen))


async def test_enter_does_what_was_typed_behind_a_list_that_is_late():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press(*"/sy")
        await until(pilot, lambda: app.chat.query_one(Suggestions).is_open)
        app.chat._suggest = lambda: None  # looking up takes its time
        await pilot.press(*"stem Be brief.", "enter")
        assert app.prompt.text == ""
        await until(pilot, lambda: app.chat.conversation.system == "Be brief.")


async def test_escape_closes_the_list_before_it_stops_an_answer():
    async with StagedChat([Script("one two three four", pause_after=2)]).run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.chat.readings.phase == "answering")
        await pilot.press("/")
        await until(pilot, lambda: app.chat.query_one(Suggestions).is_open)
        await pilot.press("escape")
        assert not app.chat.query_one(Suggestions).is_open and app.chat.readings.phase == "answering"
        await pilot.press("escape")
        await answered(pilot)
        assert "■ stopped" in shown(app)


async def test_a_click_takes_a_suggestion():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press(*"/s")
        await until(pilot, lambda: app.chat.query_one(Suggestions).is_open)
        await pilot.pause()
        await pilot.click(Suggestions, offset=(4, 1))
        assert app.prompt.text == "/set "


async def test_commands_work_without_a_model():
    async with StagedChat(info=GUIDE, loading=[]).run_test() as pilot:
        app = pilot.app
        app.may_open.clear()
        await obey(pilot, "/system Be brief.")
        assert app.kept.chat.system == "Be brief."
        app.may_open.set()

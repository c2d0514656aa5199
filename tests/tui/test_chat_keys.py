"""Every key and every command of the table."""

import pytest
from staged import StagedChat, answered, opened, say, shown, told, until
from textual.command import CommandPalette
from textual.widgets import Static

from localmoe.engine.script import Script
from localmoe.settings import load_settings
from localmoe.tui.commands import COMMANDS
from localmoe.tui.palette import ChatCommands
from localmoe.tui.screens.chats import ChatsScreen
from localmoe.tui.screens.confirm import ConfirmScreen
from localmoe.tui.screens.doctor import DoctorScreen
from localmoe.tui.screens.keys import KeysScreen
from localmoe.tui.screens.models import ModelsScreen
from localmoe.tui.screens.page import PageScreen
from localmoe.tui.screens.settings import SettingsScreen
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.engine_panel import EnginePanel
from localmoe.tui.widgets.greeting import Greeting
from localmoe.tui.widgets.status_line import StatusLine
from localmoe.tui.widgets.thought import Thought
from localmoe.tui.widgets.user_turn import UserTurn

WIDE = (120, 40)
THOUGHTFUL = Script("The answer.\n\n```python\ncode()\n```", "A thought about it.")
HELD = Script("one two three four five six", pause_after=4)


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


async def talked(pilot, question="Hm?"):
    await opened(pilot)
    await say(pilot, question)
    return await answered(pilot)


async def streaming(pilot):
    app = await opened(pilot)
    await say(pilot, "Hm?")
    await until(pilot, lambda: app.query(AnswerTurn) and "four" in app.query_one(AnswerTurn).text)
    return app


def test_keys_and_names_are_unique():
    keys = [command.key for command in COMMANDS if command.key]
    assert len(set(keys)) == len(keys)
    assert len({command.id for command in COMMANDS}) == len(COMMANDS)
    assert all(command.title.count(": ") == 1 for command in COMMANDS)


async def test_f1_shows_all_keys_and_goes_away():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        for close in ("f1", "escape"):
            await pilot.press("f1")
            assert isinstance(app.screen, KeysScreen)
            page = "\n".join(str(part.content) for part in app.screen.query(Static))
            names = {command.id: app.keymap.names(command.id) for command in COMMANDS if command.key}
            assert all(name in page for names_of_one in names.values() for name in names_of_one)
            assert all(command.help in page for command in COMMANDS if command.key)
            assert all(command.usage in page for command in COMMANDS if command.slash)
            await pilot.press(close)
            assert app.screen is app.chat


async def test_f2_hides_and_shows_the_panel():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        assert app.query_one(EnginePanel).display and not app.query_one(StatusLine).display
        await pilot.press("f2")
        assert not app.query_one(EnginePanel).display
        await pilot.press("f2")
        assert app.query_one(EnginePanel).display


async def test_at_80_columns_the_panel_is_a_line_and_under_60_nothing():
    async with StagedChat().run_test(size=(80, 24)) as pilot:
        app = await talked(pilot)
        assert app.query_one(StatusLine).display and not app.query_one(EnginePanel).display
        assert "TTFT" in shown(app)
        await pilot.press("f2")
        assert not app.query_one(StatusLine).display
        await pilot.press("f2")
        await pilot.resize_terminal(50, 20)
        await pilot.pause()
        assert not app.query_one(StatusLine).display and not app.query_one(EnginePanel).display
        assert max(map(len, shown(app).splitlines())) <= 50


async def test_the_panel_shows_what_was_measured():
    script = Script("one two three four", prompt_tokens=1000, prefill_ticks=10, prefill_tick_s=0.1, token_s=0.08)
    async with StagedChat([script]).run_test(size=WIDE) as pilot:
        app = await talked(pilot)
        text = shown(app)
        for words in ("1.1 s", "1,000 tok/s", "12.5 tok/s", "1,004 of 4,096 tok", "0 of 1,000 tok", "AVX2", "14.6 MB"):
            assert words in text, words
        assert "one for each physical" in text


async def test_ctrl_t_opens_and_closes_every_thought():
    async with StagedChat([THOUGHTFUL]).run_test() as pilot:
        app = await talked(pilot)
        await talked(pilot)
        await pilot.press("ctrl+t")
        assert all(thought.is_open for thought in app.query(Thought))
        assert "▾ Thought" in shown(app) and "A thought about it." in shown(app)
        await pilot.press("ctrl+t")
        assert not any(thought.is_open for thought in app.query(Thought))


async def test_open_thoughts_stay_open_for_the_next_answer():
    async with StagedChat([THOUGHTFUL]).run_test() as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+t")
        await say(pilot, "Hm?")
        await answered(pilot)
        assert "A thought about it." in shown(app)


async def test_a_click_opens_one_thought():
    async with StagedChat([THOUGHTFUL]).run_test() as pilot:
        app = await talked(pilot)
        await pilot.click(".thought-line")
        assert app.query_one(Thought).is_open
        await pilot.click(".thought-line")
        assert not app.query_one(Thought).is_open


async def test_ctrl_y_copies_the_last_answer():
    async with StagedChat(["First.", "Second **one**."]).run_test(notifications=True) as pilot:
        app = await talked(pilot)
        await talked(pilot)
        await pilot.press("ctrl+y")
        assert app.clipboard == "Second **one**."
        await until(pilot, lambda: "Copied the last answer: 15" in shown(app))


async def test_ctrl_y_while_streaming_copies_what_is_there():
    async with StagedChat([HELD]).run_test() as pilot:
        app = await streaming(pilot)
        await pilot.press("ctrl+y")
        assert app.clipboard == "one two three four"


async def test_ctrl_y_without_an_answer_says_so():
    async with StagedChat().run_test(notifications=True) as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+y")
        await until(pilot, lambda: "no answer to copy" in shown(app))


async def test_what_is_copied_holds_no_escape_sequence():
    async with StagedChat(["rm \x1b[2J-rf"]).run_test() as pilot:
        app = await talked(pilot)
        await pilot.press("ctrl+y")
        assert app.clipboard == "rm [2J-rf"


async def test_ctrl_n_asks_nothing_of_an_empty_chat():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("draft")
        await pilot.press("ctrl+n")
        assert app.screen is app.chat and app.prompt.text == "draft"


async def test_ctrl_n_asks_before_turns_are_lost():
    async with StagedChat().run_test() as pilot:
        app = await talked(pilot)
        await pilot.press("ctrl+n")
        assert isinstance(app.screen, ConfirmScreen)
        assert "1 question" in shown(app)
        await pilot.press("escape")
        assert app.query(UserTurn) and app.chat.conversation.messages


async def test_ctrl_n_starts_over_in_a_new_session():
    async with StagedChat(["First.", "Second."]).run_test() as pilot:
        app = await talked(pilot)
        await pilot.press("ctrl+n", "enter")
        await until(pilot, lambda: app.query(Greeting))
        assert not app.query(UserTurn) and app.chat.conversation.messages == ()
        assert "What can you do?" in shown(app)
        await talked(pilot, "Anew?")
        first, second = app.scripted.requests
        assert first.session != second.session
        assert [m.text for m in second.conversation.messages] == ["Anew?"]


async def test_ctrl_n_in_the_middle_of_an_answer_drops_it():
    async with StagedChat([HELD, "Second."]).run_test() as pilot:
        app = await streaming(pilot)
        await pilot.press("ctrl+n", "enter")
        await until(pilot, lambda: app.chat.readings.phase == "idle")
        assert app.chat.conversation.messages == () and not app.query(AnswerTurn)
        await talked(pilot, "Anew?")
        assert "Second." in shown(app) and "four" not in shown(app)


async def test_ctrl_q_leaves_at_once_also_while_streaming():
    async with StagedChat([HELD]).run_test() as pilot:
        app = await streaming(pilot)
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert app._exit


async def test_ctrl_c_stops_an_answer_and_never_leaves():
    async with StagedChat([HELD]).run_test(notifications=True) as pilot:
        app = await streaming(pilot)
        await pilot.press("ctrl+c")
        await answered(pilot)
        assert "■ stopped" in shown(app)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "Ctrl+Q leaves" in shown(app))
        assert not app._exit


async def test_ctrl_p_finds_commands_by_name():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"panel")
        await until(pilot, lambda: "panel: toggle" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat and not app.query_one(EnginePanel).display)


async def test_themes_are_commands_and_the_one_chosen_stays():
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        assert app.theme == "localmoe-dark"
        await pilot.press("ctrl+p", *"localmoe-light")
        await until(pilot, lambda: "theme: localmoe-light" in shown(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.theme == "localmoe-light")
        await until(pilot, lambda: load_settings().theme == "localmoe-light")
    async with StagedChat(settings=load_settings()).run_test() as pilot:
        assert pilot.app.theme == "localmoe-light"


async def test_a_theme_that_cannot_be_kept_is_used_and_that_is_said(tmp_path):
    (tmp_path / "localmoe").mkdir()
    (tmp_path / "localmoe" / "config.toml").write_text("no = = toml")
    async with StagedChat().run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await app.run_action("set_theme('nord')")
        await until(pilot, lambda: "The theme is not kept" in told(app))
        assert app.theme == "nord" and (tmp_path / "localmoe" / "config.toml").read_text() == "no = = toml"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.id)
async def test_every_command_runs_from_the_palette(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDITOR", "false")
    app = StagedChat([THOUGHTFUL], history=tmp_path / "chats.db")
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        app = await talked(pilot)
        provider = ChatCommands(app.chat, None)
        hits = {str(hit.prompt): hit async for hit in provider.search(command.title)}
        if command.id == "palette.open" or command.is_of_prompt:
            assert command.title not in hits
            return
        await hits[command.title].command()
        happened = {
            "answer.stop": lambda: app.screen is app.chat,
            "answer.copy": lambda: app.clipboard.startswith("The answer."),
            "answer.again": lambda: len(app.scripted.requests) == 2,
            "prompt.editor": lambda: "cannot be given to an editor" in shown(app),
            "code.copy": lambda: app.clipboard == "code()",
            "question.edit": lambda: app.prompt.text == "Hm?",
            "question.copy": lambda: app.clipboard == "Hm?",
            "file.attach": lambda: app.prompt.text == "@",
            "thinking.switch": lambda: app.kept.settings.think is True,
            "system.write": lambda: app.prompt.text == "/system ",
            "parameter.set": lambda: isinstance(app.screen, PageScreen),
            "models.open": lambda: isinstance(app.screen, ModelsScreen),
            "model.choose": lambda: isinstance(app.screen, ModelsScreen),
            "doctor.open": lambda: isinstance(app.screen, DoctorScreen),
            "settings.open": lambda: isinstance(app.screen, SettingsScreen),
            "stats.show": lambda: isinstance(app.screen, PageScreen),
            "chat.save": lambda: "This chat is kept" in shown(app),
            "chat.export": lambda: (tmp_path / "hm.md").exists(),
            "chat.page_up": lambda: app.query(UserTurn),
            "chat.page_down": lambda: app.query(UserTurn),
            "branch.next": lambda: app.query(UserTurn),
            "thoughts.toggle": lambda: app.query_one(Thought).is_open,
            "panel.toggle": lambda: not app.query_one(EnginePanel).display,
            "chat.new": lambda: not app.query(UserTurn) and app.query(Greeting),
            "chats.open": lambda: isinstance(app.screen, ChatsScreen),
            "chat.first": lambda: app.query(UserTurn),
            "chat.last": lambda: app.query(UserTurn),
            "keys.show": lambda: isinstance(app.screen, KeysScreen),
            "theme.choose": lambda: isinstance(app.screen, CommandPalette),
            "tab.new": lambda: len(app.tabs) == 2,
            "tab.close": lambda: len(app.tabs) == 1,
            "tab.next": lambda: len(app.tabs) == 1,
            "tab.previous": lambda: len(app.tabs) == 1,
            "tab.go": lambda: "Which tab?" in told(app),
            "app.quit": lambda: app._exit,
        }
        await until(pilot, happened[command.id])

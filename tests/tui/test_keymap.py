"""Other keys by config.toml: what is in force, and what is said of keys that cannot be."""

import pytest
from staged import StagedChat, answered, opened, say, shown, until
from textual.widgets import Static

from localmoe.errors import UsageError
from localmoe.settings import config_file, load_settings
from localmoe.tui.commands import COMMANDS
from localmoe.tui.keymap import Keymap, key_name
from localmoe.tui.screens.chats import ChatsScreen
from localmoe.tui.screens.keys import KeysScreen
from localmoe.tui.widgets.engine_panel import EnginePanel

WIDE = (120, 40)


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def configured(text):
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)
    return load_settings()


async def test_a_command_gets_the_key_that_was_chosen_and_loses_its_own():
    settings = configured('[keys]\npanel.toggle = "f9, alt+p"\n')
    async with StagedChat(settings=settings).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press("f2")
        assert app.query_one(EnginePanel).display
        for key in ("f9", "alt+p"):
            before = app.query_one(EnginePanel).display
            await pilot.press(key)
            assert app.query_one(EnginePanel).display != before


async def test_two_commands_can_change_keys():
    settings = configured('[keys]\n"panel.toggle" = "f1"\n"keys.show" = "f2"\n')
    async with StagedChat(settings=settings).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await pilot.press("f1")
        assert not app.query_one(EnginePanel).display
        await pilot.press("f2")
        assert isinstance(app.screen, KeysScreen)


async def test_sending_and_new_lines_can_change_too():
    settings = configured('[keys.prompt]\nsend = "f9"\nnewline = "enter"\n')
    async with StagedChat(settings=settings).run_test(size=(140, 40)) as pilot:
        app = await opened(pilot)
        await pilot.press("a", "enter", "b")
        assert app.prompt.text == "a\nb" and not app.scripted.requests
        assert "F9 send · Enter newline" in shown(app)
        await pilot.press("f9")
        await answered(pilot)
        assert app.chat.conversation.messages[0].text == "a\nb"


async def test_a_dialogue_has_keys_with_ids_too(tmp_path):
    settings = configured('[keys]\nchats.rename = "f11"\n')
    async with StagedChat(settings=settings, history=tmp_path / "chats.db").run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        await say(pilot, "Hm?")
        await answered(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ChatsScreen) and app.screen._choices)
        await pilot.press("f11")
        await until(pilot, lambda: "The chat's title" in shown(app))


async def test_every_page_names_the_keys_in_force():
    settings = configured('[keys]\nkeys.show = "f12"\nchats.open = "f7"\napp.quit = "ctrl+x"\n')
    async with StagedChat(settings=settings).run_test(size=WIDE) as pilot:
        app = await opened(pilot)
        assert "F12 keys" in shown(app) and "Ctrl+X quit" in shown(app)
        await pilot.press("f12")
        page = "\n".join(str(part.content) for part in app.screen.query(Static))
        assert "F12" in page and "F7" in page and "Ctrl+O" not in page


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[keys]\n\nanswer.cpy = "f11"', "line 3: no command is called 'answer.cpy'", "did you mean answer.copy?"),
        ('theme = "x"\n[keys]\nanswer.copy = "f1"', "line 3: f1 is the key of keys.show already", "another key"),
        ('[keys]\nanswer.copy = "f11"\nanswer.again = "f11"', "f11 is the key of answer.", "another key"),
        ('[keys.answer]\ncopy = "ctrl+nokey"', "line 2: answer.copy: 'ctrl+nokey' is no key", "ctrl+k"),
        ('[keys]\nanswer.copy = "x"', "answer.copy: 'x' is no key", "ctrl+k"),
        ('[keys]\nanswer.copy = ""', "answer.copy: '' is no key", "ctrl+k"),
        ('[keys]\nanswer.copy = "enter"', "enter is needed for writing", "ctrl"),
        ('[keys]\nanswer.copy = "up"', "up is needed for writing", "ctrl"),
    ],
)
def test_keys_that_cannot_be_are_named_with_their_line(text, message, hint):
    with pytest.raises(UsageError) as caught:
        Keymap(configured(text).keys)
    assert message in caught.value.message and str(config_file()) in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"), [("[keys]\n\na.b = 3", "line 3: a.b must be a key"), ("keys = 3", "a table")]
)
def test_what_is_no_table_of_keys_is_named(text, message):
    with pytest.raises(UsageError, match=message):
        configured(text)


def test_the_settings_do_not_take_keys_for_a_setting():
    settings = configured('threads = 3\n[keys]\nanswer.copy = "f11"\n')
    assert settings.threads == 3
    assert settings.keys["answer.copy"].where == f"{config_file()}, line 3"


def test_no_two_commands_have_the_same_key_or_word():
    keys = [key for command in COMMANDS for key in command.key.split(",") if key]
    words = [command.slash for command in COMMANDS if command.slash]
    assert len(set(keys)) == len(keys) and len(set(words)) == len(words)


def test_names_of_keys():
    names = [key_name(key) for key in ("ctrl+y", "pageup", "escape", "f1", "ctrl+home", "alt+enter")]
    assert names == ["Ctrl+Y", "PgUp", "Esc", "F1", "Ctrl+Home", "Alt+Enter"]

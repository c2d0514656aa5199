"""Settings in the chat: each with its origin, and config.toml changed safely."""

import pytest
from arriving import own_home
from staged import StagedChat, answered, opened, say, shown, until

from localmoe.settings import RULES, config_file, load_settings
from localmoe.tui.screens.doctor import DoctorScreen
from localmoe.tui.screens.models import ModelsScreen
from localmoe.tui.screens.setting_edit import SettingEditScreen
from localmoe.tui.screens.settings import SettingsScreen

SIZE = (100, 30)
MINE = "# mine\ntemperature = 0.5  # calm\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    own_home(tmp_path, monkeypatch)
    config_file().write_text(MINE)
    return tmp_path


def staged_with(**flags):
    return StagedChat(settings=load_settings(flags))


async def settings_page(pilot, name: str) -> SettingsScreen:
    await opened(pilot)
    await pilot.press("f5")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingsScreen) and pilot.app.screen._rows)
    page = pilot.app.screen
    await pilot.press("home", *["down"] * list(RULES).index(name))
    await until(pilot, lambda: page.chosen == name)
    return page


def origins(page):
    return {row.name: row.origin for row in page._rows}


def values(page):
    return {row.name: row.value for row in page._rows}


async def edited(pilot, name: str, text: str) -> SettingsScreen:
    page = await settings_page(pilot, name)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingEditScreen))
    edit = pilot.app.screen.query_one("Input")
    edit.value = text
    await pilot.press("enter")
    return page


async def test_every_setting_has_its_value_and_its_origin(monkeypatch):
    monkeypatch.setenv("LOCALMOE_TOP_P", "0.9")
    async with staged_with(max_tokens=64).run_test(size=SIZE) as pilot:
        page = await settings_page(pilot, "model")
        assert list(origins(page)) == list(RULES)
        assert origins(page) | {
            "temperature": "config.toml",
            "top_p": "LOCALMOE_TOP_P",
            "max_tokens": "--max-tokens",
            "min_p": "the model",
            "context": "the plan",
            "plan": "default",
        } == origins(page)
        assert values(page) | {"temperature": "0.5", "top_p": "0.9", "context": "4,096", "isa": "avx2"} == values(page)
        assert "The model that answers when none is named." in shown(pilot.app)
        await pilot.press("escape")
        assert pilot.app.screen is pilot.app.chat


async def test_a_new_value_is_written_beside_what_was_there_and_used_from_the_next_chat_on():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        page = await edited(pilot, "top_p", "0.8")
        await until(pilot, lambda: "top_p is 0.8 in ~/config/localmoe/config.toml; in force now" in shown(app))
        assert config_file().read_text() == MINE + "top_p = 0.8\n"
        assert origins(page)["top_p"] == "config.toml"
        await pilot.press("escape")
        await say(pilot, "Hi")
        await answered(pilot)
        assert app.scripted.requests[-1].sampling.top_p == 0.8


async def test_a_bad_value_is_said_and_nothing_is_written():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        await edited(pilot, "context", "a lot")
        await until(pilot, lambda: "context must be a number of tokens" in shown(app))
        assert isinstance(app.screen, SettingEditScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, SettingsScreen) and config_file().read_text() == MINE


async def test_what_needs_another_engine_says_so():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        page = await edited(pilot, "context", "1024")
        await until(pilot, lambda: "in force from the next start on" in shown(app))
        assert origins(page)["context"] == "config.toml, from the next start"


async def test_a_flag_stays_in_force():
    app = staged_with(top_p=0.7)
    async with app.run_test(size=SIZE) as pilot:
        page = await edited(pilot, "top_p", "0.8")
        await until(pilot, lambda: "--top-p stays in force" in shown(app))
        assert (origins(page)["top_p"], values(page)["top_p"]) == ("--top-p", "0.7")
        assert load_settings().top_p == 0.8


async def test_a_chat_that_has_begun_keeps_its_own():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        page = await edited(pilot, "temperature", "0.9")
        await until(pilot, lambda: "new chats have it; this one has its own" in shown(app))
        assert origins(page)["temperature"] == "this chat"
        assert load_settings().temperature == 0.9


async def test_choices_are_shown_and_a_theme_is_seen_at_once():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        await settings_page(pilot, "theme")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SettingEditScreen))
        await until(pilot, lambda: "localmoe-dark" in shown(app) and "dracula" in shown(app))
        await pilot.press("home", "enter")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and load_settings().theme != "localmoe-dark")
        assert app.theme == load_settings().theme == sorted(app.available_themes)[0]


async def test_d_takes_a_setting_back_to_its_default():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        await settings_page(pilot, "temperature")
        await pilot.press("d")
        await until(pilot, lambda: "temperature is out of ~/config/localmoe/config.toml" in shown(app))
        assert config_file().read_text() == "# mine\n"
        await pilot.press("d")
        await until(pilot, lambda: "config.toml says nothing of temperature" in shown(app))


async def test_a_file_that_was_broken_meanwhile_is_left_alone():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        await settings_page(pilot, "seed")
        config_file().write_text("seed = \n")
        await pilot.press("enter")
        await until(pilot, lambda: "is not valid TOML" in " ".join(shown(app).split()))
        assert config_file().read_text() == "seed = \n"


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (80, 24)], ids=str)
async def test_it_fits_its_terminal(size):
    async with staged_with().run_test(size=size) as pilot:
        await settings_page(pilot, "theme")
        assert max(map(len, shown(pilot.app).splitlines())) <= size[0]
        assert "theme" in shown(pilot.app)


async def test_keys_typed_ahead_are_not_lost_and_pages_follow_one_another():
    app = staged_with()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("f5", "down", "down", "enter", "backspace", "3", "enter")
        await until(pilot, lambda: load_settings().threads == 3)
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, DoctorScreen))
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("escape")
        assert app.screen is app.chat

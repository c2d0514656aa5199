"""Another model answers in the same chat: from the models page, or by its name."""

import pytest
from arriving import NAME, choose, models_page, own_home
from staged import DEEPSEEK, GUIDE, StagedChat, answered, opened, say, shown, until
from tiny import make_checkpoint

from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine
from localmoe.errors import OutOfMemoryError
from localmoe.tui.widgets.engine_panel import EnginePanel

WIDE = (120, 40)
TOO_LARGE = OutOfMemoryError("mine needs 712 GB of memory here and 503 GB are available.", "choose a smaller model")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """`mine` is a model in a folder."""
    own_home(tmp_path, monkeypatch)
    folder = make_checkpoint(tmp_path / "mine")
    with (tmp_path / "config/localmoe/models.toml").open("a") as file:
        file.write(f'\n[mine]\nfolder = "{folder}"\n')
    return tmp_path


class TwoModels(StagedChat):
    """The guide first, then whatever is asked for; `opened` are their names, `closed` counts engines that ended."""

    def __init__(self, scripts=("From the guide.",), fails=None):
        super().__init__(scripts)
        self.asked_for, self.engines, self.fails = [], [], fails
        first = self._open_engine_for

        def open_engine_for(settings):
            if settings.model == "guide":
                return first(settings)

            def open_engine(report):
                assert all(engine._closed for engine in self.engines), "two models may not fit"
                self.asked_for.append(settings.model)
                if self.fails:
                    raise self.fails
                return ScriptedEngine(["From mine."], info=DEEPSEEK)

            return open_engine

        self._open_engine_for = open_engine_for


async def chosen(pilot, app):
    await models_page(pilot, "mine")
    app.engines.append(app.bridge.engine)
    await pilot.press("enter")
    await until(pilot, lambda: app.asked_for)


async def test_enter_on_a_model_that_is_here_lets_it_answer_in_this_chat():
    app = TwoModels()
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot)
        await say(pilot, "Who are you?")
        await answered(pilot)
        await chosen(pilot, app)
        await until(pilot, lambda: app.chat.readings.info == DEEPSEEK)
        assert app.asked_for == ["mine"] and app.screen is app.chat
        await say(pilot, "And now?")
        await until(pilot, lambda: app.chat.conversation.num_turns == 4)
        text = shown(app)
        assert "From the guide." in text and "From mine." in text and "deepseek-v3.1" in text
        assert len(app.query_one(EnginePanel).children) == 6  # one panel, not two
        assert app.kept.chat.model == "mine"


async def test_the_greeting_is_of_the_model_that_is_open():
    app = TwoModels()
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot)
        assert "guide answers" in shown(app)
        await chosen(pilot, app)
        await until(pilot, lambda: "deepseek-v3.1 answers" in shown(app))
        assert "guide answers" not in shown(app) and shown(app).count("Try one") == 1


async def test_a_model_that_does_not_open_says_why_and_another_may_be_chosen():
    app = TwoModels(fails=TOO_LARGE)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot)
        await chosen(pilot, app)
        await until(pilot, lambda: "mine needs 712 GB" in shown(app))
        assert app.chat.readings.phase == "closed"
        await models_again(pilot, "guide")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.readings.info == GUIDE)


async def models_again(pilot, name):
    await pilot.press("f3")
    await until(pilot, lambda: not getattr(pilot.app.screen, "_is_looking", True))
    await choose(pilot, pilot.app.screen, name)


async def test_the_open_model_is_just_gone_back_to():
    app = TwoModels()
    async with app.run_test(size=WIDE) as pilot:
        await models_page(pilot, "guide")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat)
        assert app.chat.readings.info == GUIDE and not app.asked_for


async def test_by_name_a_model_that_is_nowhere_is_said():
    app = TwoModels()
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await opened(pilot)
        await say(pilot, "/model deepsek-v3")
        await until(pilot, lambda: "did you mean" in shown(app))
        await say(pilot, f"/model {NAME}")
        await until(pilot, lambda: "is not on this machine" in shown(app))
        assert app.chat.readings.info == GUIDE
        app.engines.append(app.bridge.engine)
        await say(pilot, "/model mine")
        await until(pilot, lambda: app.chat.readings.info == DEEPSEEK)


async def test_while_an_answer_is_made_its_model_stays():
    app = TwoModels([Script("one two three four", pause_after=2)])
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.chat.readings.phase == "answering")
        await models_again(pilot, "mine")
        await pilot.press("enter")
        await until(pilot, lambda: "An answer is being made" in shown(app))
        assert app.chat.readings.phase == "answering" and not app.asked_for

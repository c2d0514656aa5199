"""The first screen says which real model this machine could run."""

from staged import DEEPSEEK, StagedChat, opened, shown, until
from surveyed import LAPTOP, PAPER, RecordedSurveyor

from localmoe.errors import UsageError
from localmoe.tui.advice import advice_of

SIZE = (100, 30)


def test_the_best_model_comes_with_its_size_and_speed():
    text = advice_of(RecordedSurveyor(PAPER).best(), "F3")
    assert text.startswith("This machine could run kimi-k2-instruct-0905 (1.03 TB): ~22.0 tok/s, and ~12.8 s to read")
    assert text.endswith("F3 fetches it.")


def test_where_none_would_run_well_that_is_said():
    assert "No real model" in advice_of(RecordedSurveyor(LAPTOP).best(), "F3")
    assert "/models shows what each one needs" in advice_of(None, "/models")


async def test_the_guide_greets_with_what_it_is_and_what_could_be_run():
    app = StagedChat()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await until(pilot, lambda: "This machine could run kimi-k2-instruct-0905" in shown(app))
        assert "a tiny demonstration model" in shown(app) and "What can you do?" in shown(app)


async def test_settings_that_forbid_every_plan_do_not_hide_where_models_are():
    surveyor = RecordedSurveyor()
    surveyor.best = lambda: (_ for _ in ()).throw(UsageError("--plan slp needs a GPU"))
    app = StagedChat(surveyor=surveyor)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await until(pilot, lambda: "--plan slp needs a GPU" in shown(app))
        assert "F3 shows models" in shown(app)


async def test_a_real_model_is_not_told_of_others():
    app = StagedChat(info=DEEPSEEK)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.pause(0.2)
        assert "This machine could run" not in shown(app)

"""Doctor in the chat: the same findings as on the command line, each as it comes, and measuring on demand."""

import pytest
from arriving import own_home
from staged import StagedChat, opened, say, shown, until
from surveyed import LAPTOP, PAPER, RecordedSurveyor, machine

from localmoe.cli.doctor.checks import check_machine
from localmoe.engine.script import Script
from localmoe.errors import LocalmoeError
from localmoe.settings import Settings
from localmoe.tui.screens.doctor import BUSY, DoctorScreen

SIZE = (120, 60)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    return own_home(tmp_path, monkeypatch)


async def doctor_page(pilot) -> DoctorScreen:
    await opened(pilot)
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
    return pilot.app.screen


async def looked(pilot) -> DoctorScreen:
    page = await doctor_page(pilot)
    await until(pilot, lambda: page._table and "estimates" in shown(pilot.app))
    return page


async def test_it_says_what_the_command_says_and_what_would_run(home):
    async with StagedChat().run_test(size=SIZE) as pilot:
        page = await looked(pilot)
        assert page.findings == list(check_machine(machine(PAPER)))
        text = shown(pilot.app)
        for words in ("2x EPYC 9355 · 2x RTX 5090", "kimi-k2-instruct-0905", "~22.0 tok/s", "1 thing would make it"):
            assert words in text, words
        await pilot.press("escape")
        assert pilot.app.screen is pilot.app.chat


async def test_findings_come_one_by_one():
    surveyor = RecordedSurveyor()
    surveyor.num_findings = 4
    surveyor.may_go_on.clear()
    app = StagedChat(surveyor=surveyor)
    async with app.run_test(size=SIZE) as pilot:
        page = await doctor_page(pilot)
        await until(pilot, lambda: len(page.findings) == 4)
        assert "NUMA" in shown(app) and "DIMMs" not in shown(app) and "Checking" in shown(app)
        surveyor.may_go_on.set()
        await until(pilot, lambda: len(page.findings) == len(check_machine(machine(PAPER))))


async def test_a_machine_that_cannot_run_at_all_is_told_no_models():
    surveyor = RecordedSurveyor(LAPTOP)
    app = StagedChat(surveyor=surveyor, settings=Settings(isa="avx512"))
    async with app.run_test(size=SIZE) as pilot:
        page = await doctor_page(pilot)
        await until(pilot, lambda: "localmoe cannot run here: 1 of these must be fixed first" in shown(app))
        assert not page._table and "avx512 is asked for" in shown(app)


async def test_measuring_shows_what_it_does_and_looks_again():
    surveyor = RecordedSurveyor()
    surveyor.may_go_on.clear()
    app = StagedChat(surveyor=surveyor)
    async with app.run_test(size=SIZE) as pilot:
        await looked(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "Measuring a streaming read" in shown(app))
        await pilot.press("m")
        await until(pilot, lambda: "being measured already" in shown(app) or "Measuring a streaming" in shown(app))
        surveyor.may_go_on.set()
        await until(pilot, lambda: "Measured: forecasts rest on this machine's own figures" in shown(app))
        assert surveyor.num_measured == 1


async def test_leaving_ends_a_measurement_at_its_next_step():
    surveyor = RecordedSurveyor()
    surveyor.may_go_on.clear()
    app = StagedChat(surveyor=surveyor)
    async with app.run_test(size=SIZE) as pilot:
        await looked(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "Measuring a streaming read" in shown(app))
        await pilot.press("escape")
        surveyor.may_go_on.set()
        await until(pilot, lambda: not app._measuring.locked())
        assert surveyor.num_measured == 0


async def test_a_measurement_that_fails_is_said():
    surveyor = RecordedSurveyor()
    app = StagedChat(surveyor=surveyor)
    async with app.run_test(size=SIZE) as pilot:
        await looked(pilot)
        surveyor.fails = LocalmoeError("the kernels cannot be run", "take another --isa")
        await pilot.press("m")
        await until(pilot, lambda: "the kernels cannot be run" in shown(app) and "take another --isa" in shown(app))
        assert not app._measuring.locked()


async def test_nothing_is_measured_while_an_answer_is_made():
    app = StagedChat([Script("one two three four", pause_after=2)])
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await say(pilot, "Hm?")
        await until(pilot, lambda: app.chat.readings.phase == "answering")
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, DoctorScreen) and app.screen._table)
        await pilot.press("m")
        await until(pilot, lambda: BUSY in shown(app))
        assert app.surveyor.num_measured == 0


async def test_the_commands_of_all_fixes_can_be_copied():
    app = StagedChat()
    async with app.run_test(size=SIZE) as pilot:
        await looked(pilot)
        await pilot.press("c")
        await until(pilot, lambda: "Copied 2 commands" in shown(app))
        assert app.clipboard.splitlines() == [
            "echo kernel.numa_balancing=0 | sudo tee -a /etc/sysctl.d/90-localmoe.conf",
            "sudo sysctl --system",
        ]


@pytest.mark.parametrize("size", [(40, 16), (60, 20), (80, 24)], ids=str)
async def test_it_fits_its_terminal_and_scrolls(size):
    async with StagedChat().run_test(size=size) as pilot:
        page = await doctor_page(pilot)
        await until(pilot, lambda: page._table)
        assert max(map(len, shown(pilot.app).splitlines())) <= size[0]
        await pilot.press("end")
        await until(pilot, lambda: "estimates" in shown(pilot.app) or "--measure" in shown(pilot.app))


async def test_r_looks_again():
    app = StagedChat()
    async with app.run_test(size=SIZE) as pilot:
        page = await looked(pilot)
        app.surveyor.machine = machine(LAPTOP)
        await pilot.press("r")
        await until(pilot, lambda: page.findings == list(check_machine(machine(LAPTOP))))

"""How the pages beside the chat look in every state, at 80x24 and at 120x40. `--snapshot-update` accepts a new look."""

from pathlib import Path

import pytest
from arriving import choose, own_home
from staged import StagedChat, opened, until
from surveyed import LAPTOP, RecordedSurveyor
from textual.widgets import OptionList

from localmoe.hub.download.progress import FileProgress, Pulling, Verifying
from localmoe.hub.verify import Finding, Report
from localmoe.settings import RULES, Settings, load_settings
from localmoe.tui.screens.confirm import ConfirmScreen
from localmoe.tui.screens.doctor import DoctorScreen
from localmoe.tui.screens.models import ModelsScreen
from localmoe.tui.screens.setting_edit import SettingEditScreen
from localmoe.tui.screens.settings import SettingsScreen
from localmoe.tui.transfers import Transfer

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
V31 = "deepseek-v3.1"
FILES = (
    FileProgress("model-00097-of-000163.safetensors", "fetching", 3_100_000_000, 4_300_000_000, 412e6),
    FileProgress("model-00098-of-000163.safetensors", "fetching", 900_000_000, 4_300_000_000, 398e6),
)
COMING = Pulling(447_000_000_000, 688_586_727_753, 1.6e9, 151.0, 96, 163, FILES)
CHECKED = Verifying(447_000_000_000, 688_586_727_753, 1.1e9, 220.0, 96, 163, FILES)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    own_home(tmp_path, monkeypatch)
    (tmp_path / "config/localmoe/models.toml").unlink()
    return tmp_path


class Still:
    """A runner that does nothing."""

    def run(self) -> object:
        raise AssertionError("a picture does not move")

    def cancel(self) -> None:
        return


def transfer(kind="download", state="running", progress=COMING, result=None, **words) -> Transfer:
    made = Transfer(V31, kind, lambda hear: Still(), lambda ended: None)
    made.state, made.progress, made.result = state, progress, result
    for name, text in words.items():
        setattr(made, name, text)
    return made


DAMAGE = Report(Path("/nowhere"), 168, 688_586_727_753, (Finding("model-00042-of-000163.safetensors", "is damaged"),))
PAUSED = "paused: 447.0 GB of 688.6 GB of deepseek-v3.1 are here and stay."
FAILED = {
    "message": "the hub does not answer.",
    "hint": "check the network; then `localmoe pull deepseek-v3.1` goes on",
}
TRANSFERS = {
    "fetching": lambda: transfer(notice="the hub asked for a pause. Next try in 4 s."),
    "paused": lambda: transfer(state="paused", message=PAUSED),
    "failed": lambda: transfer(state="failed", **FAILED),
    "complete": lambda: transfer(state="done", result=Path("/nowhere"), fetched_bytes=688_586_727_753),
    "checking": lambda: transfer("check", progress=CHECKED),
    "damaged": lambda: transfer("check", state="done", result=DAMAGE),
}


async def models(pilot, name=V31):
    await opened(pilot)
    await pilot.press("f3")
    await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen) and not pilot.app.screen._is_looking)
    await choose(pilot, pilot.app.screen, name)
    pilot.app.screen._draw()
    rows = pilot.app.screen.query_one(OptionList)
    rows.scroll_to(y=0, animate=False, force=True)  # wherever it was while the page took shape
    await pilot.pause()
    rows.scroll_to_highlight()


@SIZES
def test_picture_of_models(size, snap_compare):
    assert snap_compare(StagedChat(), run_before=models, terminal_size=size)


@SIZES
def test_picture_of_models_on_a_small_machine(size, snap_compare):
    assert snap_compare(StagedChat(surveyor=RecordedSurveyor(LAPTOP)), run_before=models, terminal_size=size)


@SIZES
@pytest.mark.parametrize("name", TRANSFERS)
def test_picture_of_a_transfer(name, size, snap_compare):
    app = StagedChat()
    app.transfers._by_name[V31] = TRANSFERS[name]()
    app.transfers.close = lambda: None
    assert snap_compare(app, run_before=models, terminal_size=size)


@SIZES
def test_picture_of_what_is_asked_before_a_download(size, snap_compare):
    async def asked(pilot):
        await models(pilot)
        lines = (
            "deepseek-ai/DeepSeek-V3.1 @ 9a3c1f2: 168 files, 688.6 GB; 412.0 GB here already",
            "to fetch: 276.6 GB · free at ~/.cache/huggingface/hub: 1.90 TB",
            "this machine: runs it in 682.2 GB of DRAM, 26.0 GB of GPU 0; TTFT ~17.0 s at 32K, ~21.0 tok/s",
        )
        pilot.app.push_screen(ConfirmScreen("\n".join(lines), "download", "leave it", is_wide=True))
        await pilot.pause()

    assert snap_compare(StagedChat(), run_before=asked, terminal_size=size)


async def doctor(pilot):
    await opened(pilot)
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))


async def doctored(pilot):
    await doctor(pilot)
    await until(pilot, lambda: str(pilot.app.screen.query_one("#notes")._shown))


async def looking(pilot):
    await doctor(pilot)
    await until(pilot, lambda: len(pilot.app.screen.findings) == 6)


async def hopeless(pilot):
    await doctor(pilot)
    await until(pilot, lambda: "cannot run here" in str(pilot.app.screen.query_one(".page-notice")._shown))


async def measuring(pilot):
    await doctored(pilot)
    await pilot.press("m", "end")
    await until(pilot, lambda: "Measuring" in str(pilot.app.screen.query_one(".page-notice")._shown))


@SIZES
@pytest.mark.parametrize("play", [doctored, looking, hopeless, measuring])
def test_picture_of_doctor(play, size, snap_compare):
    surveyor = RecordedSurveyor(LAPTOP) if play is hopeless else RecordedSurveyor()
    if play is looking:
        surveyor.num_findings = 6
    if play in (looking, measuring):
        surveyor.may_go_on.clear()
    app = StagedChat(surveyor=surveyor, settings=Settings(isa="avx512") if play is hopeless else None)
    assert snap_compare(app, run_before=play, terminal_size=size)
    surveyor.may_go_on.set()


async def settings(pilot, name="temperature"):
    await opened(pilot)
    await pilot.press("f5")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingsScreen) and pilot.app.screen._rows)
    await pilot.press("home", *["down"] * list(RULES).index(name))
    await until(pilot, lambda: pilot.app.screen.chosen == name)


async def editing(pilot, name="temperature"):
    await settings(pilot, name)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingEditScreen))
    for field in pilot.app.screen.query("Input"):
        field.cursor_blink = False


async def wrong(pilot):
    await editing(pilot)
    await pilot.press("x", "enter")
    await pilot.pause()


async def choosing(pilot):
    await editing(pilot, "cache_dtype")


@SIZES
@pytest.mark.parametrize("play", [settings, editing, wrong, choosing])
def test_picture_of_settings(play, size, home, snap_compare, monkeypatch):
    (home / "config/localmoe/config.toml").write_text("temperature = 0.5\n")
    monkeypatch.setenv("LOCALMOE_TOP_P", "0.9")
    app = StagedChat(settings=load_settings({"max_tokens": 512}))
    assert snap_compare(app, run_before=play, terminal_size=size)

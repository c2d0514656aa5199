"""The models page: what it lists, and a model's files from a hub to the disk and away again."""

import pytest
from arriving import REPO, SHARD, choose, hub_with, make_files, models_page, own_home, patient, slow, transfer
from loopback_hub import Fault, files_in
from staged import StagedChat, opened, shown, until
from surveyed import LAPTOP, RecordedSurveyor
from textual.widgets import OptionList

from localmoe.errors import UsageError
from localmoe.hub.hf_cache import snapshot, state_of
from localmoe.tui.screens.confirm import ConfirmScreen
from localmoe.tui.screens.models import ModelsScreen

SIZE = (100, 34)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return own_home(tmp_path, monkeypatch)


@pytest.fixture
def hub(cache, files, monkeypatch):
    with hub_with(files, monkeypatch) as running:
        yield running


async def begun(pilot):
    """The download was asked for and agreed to."""
    page = await models_page(pilot)
    await pilot.press("d")
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
    await pilot.press("enter")
    await until(pilot, lambda: transfer(pilot.app))
    return page


async def fetched(pilot):
    page = await begun(pilot)
    await until(pilot, lambda: transfer(pilot.app).state == "done" and page.chosen.folder)
    return page


def state():
    return state_of(snapshot(REPO, "main"))


async def test_the_page_lists_the_catalogue_with_what_this_machine_could_do(cache):
    async with StagedChat().run_test(size=SIZE) as pilot:
        await models_page(pilot, "kimi-k2-instruct-0905")
        text = shown(pilot.app)
        for words in ("guide", "built in", "kimi-k2-instruct-0905", "1.03 TB", "DRAM + 2 GPUs", "tok/s", "TTFT"):
            assert words in text, words
        assert "Kimi-K2" in text and "This machine runs it in" in text and "moonshotai/" in text
        await pilot.press("escape")
        assert pilot.app.screen is pilot.app.chat


async def test_a_machine_that_is_too_small_says_by_how_much(cache):
    app = StagedChat(surveyor=RecordedSurveyor(LAPTOP))
    async with app.run_test(size=SIZE) as pilot:
        await models_page(pilot, "deepseek-v3.1")
        assert "no: " in shown(app) and "GB more" in shown(app)
        assert "This machine does not run it: deepseek-v3.1 needs" in shown(app)


async def test_settings_that_forbid_every_plan_are_said(cache):
    surveyor = RecordedSurveyor(fails=UsageError("--plan slp needs a GPU", "leave --plan out"))
    async with StagedChat(surveyor=surveyor).run_test(size=SIZE) as pilot:
        await models_page(pilot, "guide")
        assert "--plan slp needs a GPU" in shown(pilot.app) and "leave --plan out" in shown(pilot.app)


async def test_a_wrong_models_toml_is_said_with_its_line(cache, tmp_path):
    (tmp_path / "config/localmoe/models.toml").write_text('[mine]\nrepo = "a/b"\ncolour = "red"\n')
    async with StagedChat().run_test(size=SIZE) as pilot:
        app = await opened(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: "line 3: unknown key 'colour'" in " ".join(shown(app).split()))


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (80, 24), (200, 50)], ids=str)
async def test_rows_fit_their_terminal(cache, size):
    async with StagedChat().run_test(size=size) as pilot:
        page = await models_page(pilot, "guide")
        room = page.query_one(OptionList).scrollable_content_region.width
        for row in page._drawn:
            assert row.cell_length <= room <= size[0]
        assert "built in" in shown(pilot.app)


async def test_a_download_asks_shows_its_progress_and_can_be_opened(hub, files):
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await models_page(pilot)
        assert "unknown" in shown(app)  # of a model that nobody knows yet
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        total = sum(map(len, files.values())) / 1e6
        for words in (
            f"{REPO} @ ",
            f"{len(files)} files, {total:.1f} MB",
            "to fetch: ",
            "free at ~/hf/hub",
            "runs it in",
        ):
            assert words in " ".join(shown(app).split()), words
        assert state() == "absent" and not transfer(app)
        slow(hub)
        await pilot.press("enter")
        await until(pilot, lambda: transfer(app) and "Fetching tiny" in shown(app) and "B/s" in shown(app))
        assert "coming" in shown(app) and "It goes on while you chat." in shown(app)
        hub.bytes_per_s = 0
        await until(pilot, lambda: "checksums are right" in shown(app))
        assert state() == "present" and files_in(snapshot(REPO, "main")) == files


async def test_no_is_an_answer(hub):
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await models_page(pilot)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, ModelsScreen) and not transfer(app)
        assert not hub.asked(SHARD)


async def test_a_download_pauses_and_goes_on_with_what_is_missing(hub, files):
    slow(hub)
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await begun(pilot)
        await until(pilot, lambda: (p := transfer(app).progress) and p.done_bytes > p.total_bytes / 5)
        await pilot.press("p")
        await until(pilot, lambda: "P goes on" in shown(app))
        assert transfer(app).state == "paused" and "Paused: " in shown(app)
        hub.bytes_per_s = 0
        hub.forget()
        await pilot.press("p")
        await until(pilot, lambda: state() == "present" and transfer(app).state == "done")
        assert sum(hub.sent.values()) < 0.9 * sum(map(len, files.values()))


async def test_a_download_goes_on_while_the_chat_is_shown_and_says_when_it_is_done(hub):
    slow(hub)
    app = patient(StagedChat())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await begun(pilot)
        await pilot.press("escape")
        assert app.screen is app.chat and transfer(app).is_active
        app.prompt.insert("Hi")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.conversation.num_turns == 2)
        assert transfer(app).is_active
        hub.bytes_per_s = 0
        await until(pilot, lambda: "tiny is complete" in shown(app))


async def test_leaving_pauses_a_download_and_the_next_one_goes_on(hub, files):
    slow(hub)
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await begun(pilot)
        await until(pilot, lambda: (p := transfer(app).progress) and p.done_bytes > p.total_bytes / 5)
    assert transfer(app).state == "paused"
    hub.bytes_per_s = 0
    hub.forget()
    again = patient(StagedChat())
    async with again.run_test(size=SIZE) as pilot:
        await models_page(pilot)
        assert "in part" in shown(again)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(again.screen, ConfirmScreen))
        assert "here already" in shown(again)
        await pilot.press("enter")
        await until(pilot, lambda: state() == "present" and transfer(again).state == "done")
    assert sum(hub.sent.values()) < 0.9 * sum(map(len, files.values()))


async def test_a_second_download_waits_for_the_first(hub):
    slow(hub)
    async with patient(StagedChat()).run_test(size=SIZE) as pilot:
        page = await begun(pilot)
        await choose(pilot, page, "deepseek-v3")
        await pilot.press("d")
        await until(pilot, lambda: "tiny is being fetched now. P pauses it" in shown(pilot.app))
        await pilot.press("p")
        await until(pilot, lambda: transfer(pilot.app).state == "paused")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}), "someone/Tiny-MoE"),
        (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), "only for those whom its makers let in"),
        (Fault(hang_up=True), "hub"),
    ],
    ids=["missing", "gated", "silent"],
)
async def test_what_the_hub_refuses_is_said_with_what_to_do(hub, fault, words):
    hub.fault = lambda asked: fault
    async with patient(StagedChat()).run_test(size=SIZE) as pilot:
        page = await models_page(pilot)
        await pilot.press("d")
        notice = page.query_one(".page-notice")
        await until(pilot, lambda: "Asking" not in str(notice._shown) and "\n" in str(notice._shown))
        assert words in str(notice._shown)
        assert not transfer(pilot.app)


async def test_a_download_that_fails_says_why_and_goes_on_later(hub, files):
    hub.fault = lambda asked: Fault(cut_after=1000) if asked.server == "cdn" and asked.file == SHARD else None
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await begun(pilot)
        await until(pilot, lambda: transfer(app).state == "failed" and transfer(app).message.split()[0] in shown(app))
        assert transfer(app).hint and "failed" in shown(app)
        hub.fault = lambda asked: None
        await pilot.press("p")
        await until(pilot, lambda: state() == "present")


async def test_a_full_disk_is_said_before_the_first_byte(hub, monkeypatch):
    monkeypatch.setattr("localmoe.hub.download.plan._free_bytes", lambda folder: 1000)
    async with patient(StagedChat()).run_test(size=SIZE) as pilot:
        await models_page(pilot)
        await pilot.press("d")
        await until(pilot, lambda: "more on the disk of" in shown(pilot.app))
        assert "or set HF_HOME to a larger disk" in shown(pilot.app)
        assert not hub.asked(SHARD)


async def test_a_check_finds_the_damaged_file_and_fetches_only_that(hub, files):
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await fetched(pilot)
        await pilot.press("v")
        await until(pilot, lambda: "checksums and structure are right" in shown(app))
        damaged = snapshot(REPO, "main") / SHARD
        data = bytearray(damaged.read_bytes())
        data[-1] ^= 1
        damaged.resolve().write_bytes(data)
        await pilot.press("v")
        await until(pilot, lambda: f"{SHARD} is damaged" in shown(app))
        assert "D fetches only what is damaged" in shown(app)
        hub.forget()
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert SHARD in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: (t := transfer(app)) and t.kind == "download" and t.state == "done")
        assert files_in(snapshot(REPO, "main")) == files
        assert {one for one in hub.sent if one.endswith(".safetensors")} == {SHARD}


async def test_remove_asks_and_frees_what_it_says(hub, cache, files):
    app = patient(StagedChat())
    async with app.run_test(size=SIZE) as pilot:
        await fetched(pilot)
        before = sum(path.lstat().st_size for path in cache.rglob("*") if path.is_file() and not path.is_symlink())
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "Remove tiny and free " in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert state() == "present"
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("enter")
        await until(pilot, lambda: "tiny is removed; " in shown(app))
        assert state() == "absent"
        after = sum(path.lstat().st_size for path in cache.rglob("*") if path.is_file() and not path.is_symlink())
        assert f"{(before - after) / 1e6:.1f} MB are free again" in shown(app)


async def test_the_guide_is_no_file_of_the_hub(cache):
    async with StagedChat().run_test(size=SIZE) as pilot:
        await models_page(pilot, "guide")
        await pilot.press("d")
        await until(pilot, lambda: "guide is not from the hub" in shown(pilot.app))
        await pilot.press("r")
        await until(pilot, lambda: "remove its folder yourself" in shown(pilot.app))
        await pilot.press("v")
        await until(pilot, lambda: (t := transfer(pilot.app, "guide")) and t.state == "done")
        await until(pilot, lambda: "guide: " in shown(pilot.app))

"""Lanes and heat as they are drawn: what was, where it was, and never wider than its place."""

import pytest
from scenes import WORKERS, looking, recorded
from staged import DEEPSEEK, StagedChat, answered, opened, say, shown, until

from localmoe.events import Heat, Lane, Lanes, LaneSpan
from localmoe.tui import figures
from localmoe.tui.widgets.engine_panel import EnginePanel
from localmoe.tui.widgets.heat import heat_rows, heat_title, shown_layers
from localmoe.tui.widgets.lanes import busy_shares, lanes_rows, lanes_title, load_rate
from localmoe.tui.widgets.status_line import StatusLine, fitting

WIDE = (120, 40)
LANES = ["load", "compute", "exchange"]


def span(start_s, end_s, busy_s=None, num_bytes=0):
    return LaneSpan(0, 0, start_s, end_s, end_s - start_s if busy_s is None else busy_s, num_bytes)


def plain(content):
    return content.plain.split("\n")


def test_a_cell_is_as_high_as_its_time_was_busy():
    assert busy_shares([span(-4, -2)], 4.0, 4) == [1, 1, 0, 0]
    assert busy_shares([span(-3.5, -1.75)], 4.0, 4) == pytest.approx([0.5, 1, 0.25, 0])
    assert busy_shares([span(-4, 0, busy_s=1)], 4.0, 4) == [0.25] * 4
    assert busy_shares([span(-6, -3), span(-3, -2.5), span(-0.5, 0)], 4.0, 4) == pytest.approx([1, 0.5, 0, 0.5])
    assert busy_shares([span(-1, 0), span(-1, 0)], 4.0, 4) == [0, 0, 0, 1]
    assert busy_shares([], 4.0, 2) == [0, 0]


def test_whatever_was_busy_is_seen():
    assert figures.levels([0, 0.001, 0.5, 0.51, 1]) == " ▁▄▅█"


@pytest.mark.parametrize("width", [30, 37, 60])
@pytest.mark.parametrize("name", ["two_devices", "from_disk"])
def test_recorded_lanes_fit_and_keep_their_columns(name, width):
    event = recorded(name)
    rows = plain(lanes_rows(event, width, is_reading=True))
    assert len(rows) == len(event.lanes) + len({lane.device for lane in event.lanes})
    assert {len(row) for row in rows} == {width}
    assert rows[0].endswith(f"layer {event.layer} of {event.num_layers}")
    assert "layer" not in "".join(plain(lanes_rows(event, width, is_reading=False)))


def test_each_device_has_its_lanes():
    rows = plain(lanes_rows(recorded("two_devices"), 37, is_reading=True))
    assert [row.split()[0] for row in rows] == ["host0", *LANES, "host1", *LANES]
    assert rows[1].endswith("4.0 MB/s") and "█" in rows[1]
    assert rows[2].endswith("11 % busy")


def test_figures_are_the_events():
    event = recorded("two_devices")
    assert lanes_title(event, is_running=True) == "Lanes, last 4 s · overlap 96 %"
    assert lanes_title(event, is_running=False) == "Lanes, final 4 s · overlap 96 %"
    assert load_rate(event) == "8.0 MB/s"
    resident = Lanes(1.0, 4.0, (Lane("cpu", "compute", 2.0, 0, (span(-2, 0),)),))
    assert lanes_title(resident, is_running=True) == "Lanes, last 4 s"
    assert load_rate(resident) == ""
    assert plain(lanes_rows(None, 37, is_reading=False)) == plain(lanes_rows(Lanes(1.0, 4.0, ()), 37, is_reading=True))


def test_a_row_of_heat_is_a_layer():
    heat = Heat(2, 4, 9, ((8, 0, 4, 1), (2, 2, 2, 2)))
    assert plain(heat_rows(heat, 5)) == ["  2  " + "█" * 8 + " " * 8 + "▄" * 8 + "▁" * 8, "  3  " + "▂" * 32]
    assert heat_title(heat) == "Experts, last 9 steps, by layer"
    rows = plain(heat_rows(Heat(4, 256, 9, ((1,) * 32,) * 58), 5))
    assert [row.split()[0] for row in rows] == ["4", "18", "32", "47", "61"]
    assert {len(row) for row in rows} == {37}


def test_of_many_layers_some_are_shown_the_first_and_the_last_among_them():
    assert shown_layers(3, 5) == [0, 1, 2]
    assert shown_layers(58, 5) == [0, 14, 28, 43, 57]


async def looked(pilot):
    app = await opened(pilot)
    await say(pilot, "Why?")
    return app


async def test_the_panel_shows_lanes_while_the_prompt_is_read_and_f2_hides_them():
    app = StagedChat([looking("two_devices", pause_in_prefill=14)], info=DEEPSEEK)
    async with app.run_test(size=WIDE) as pilot:
        await looked(pilot)
        await until(pilot, lambda: "host1" in shown(app))
        for words in ("Lanes, last 4 s · overlap 96 %", "layer 5 of 6", "4.0 MB/s", "exchange"):
            assert words in shown(app), words
        await pilot.press("f2")
        assert not app.query_one(EnginePanel).display and "Lanes" not in shown(app)
        await pilot.press("f2")
        await until(pilot, lambda: "Lanes, last 4 s" in shown(app))


async def test_the_panel_shows_experts_and_workers_of_the_answer():
    app = StagedChat([looking("from_disk", "heat")], info=DEEPSEEK)
    async with app.run_test(size=WIDE) as pilot:
        await looked(pilot)
        await answered(pilot)
        wanted = ("Lanes, final 4 s", "Experts, last", f"{WORKERS.urgent:.1f} decode, {WORKERS.bulk:.1f} prefill")
        for words in (*wanted, "p50 41  p99 183  max 212"):
            assert words in shown(app), words


async def test_the_panel_says_how_far_the_prompt_is_and_how_long_that_takes():
    app = StagedChat([looking("two_devices", pause_in_prefill=14)], info=DEEPSEEK)
    async with app.run_test(size=WIDE) as pilot:
        await looked(pilot)
        await until(pilot, lambda: "Prompt     70 %, 4 s left" in shown(app))
        lines = shown(app).splitlines()
        prefill = next(line for line in lines if "Prefill" in line)
        assert "1,214 tok/s" in prefill and "█" in prefill  # the bars are beside their figure, not below
        app.scripted.resume()
        await answered(pilot)
        assert "Prompt     17,480 tok" in shown(app)


def test_a_line_has_what_there_is_room_for_and_never_half_of_it():
    parts = ["prefill 1,214 tok/s", "overlap 96 %", "8.0 MB/s"]
    assert fitting(parts, 80) == "prefill 1,214 tok/s · overlap 96 % · 8.0 MB/s"
    assert fitting(parts, 40) == "prefill 1,214 tok/s · overlap 96 %"
    assert fitting(parts, 10) == "prefill 1,214 tok/s"


@pytest.mark.parametrize("width", range(60, 101, 8))
async def test_what_is_left_to_read_is_never_cut(width):
    app = StagedChat([looking("two_devices", pause_in_prefill=14)], info=DEEPSEEK)
    async with app.run_test(size=(width, 20)) as pilot:
        await looked(pilot)
        await until(pilot, lambda: "70 %   4 s left" in shown(app))
        assert max(map(len, shown(app).splitlines())) <= width


async def test_at_60_columns_the_line_says_what_moves():
    app = StagedChat([looking("two_devices", pause_in_prefill=14)], info=DEEPSEEK)
    async with app.run_test(size=(60, 20)) as pilot:
        await looked(pilot)
        await until(pilot, lambda: "overlap 96 % · 8.0 MB/s" in shown(app))
        assert app.query_one(StatusLine).display
        await pilot.resize_terminal(50, 20)
        await pilot.pause()
        assert "overlap" not in shown(app) and max(map(len, shown(app).splitlines())) <= 50

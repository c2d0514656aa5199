"""How often the screen is drawn, on a clock that stands for what the thread computes."""

import pytest

from localmoe.tui import pace
from localmoe.tui.pace import EVERY_S, LEAST_OFTEN_S, UNSEEN_EVERY_S, Pace, share_beside


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace, "thread_time", lambda: now[0])
    return now


def waits(clock, draws, *, share):
    """`draws`: seconds that each takes, and seconds of the thread's between its end and the next."""
    found = Pace()
    found.share = share
    for draw_s, late_s in draws:
        found.begin()
        clock[0] += draw_s
        yield found.wait_s(is_seen=True)
        clock[0] += late_s


def test_cheap_draws_come_twelve_times_a_second_and_unseen_ones_less_often(clock):
    assert list(waits(clock, [(0.001, 0.0)] * 3, share=1 / 16)) == [EVERY_S] * 3
    assert Pace().wait_s(is_seen=False) == UNSEEN_EVERY_S


def test_dear_draws_take_their_share_and_no_more(clock):
    assert list(waits(clock, [(0.01, 0.0)] * 3, share=1 / 16)) == pytest.approx([0.16] * 3)


def test_what_comes_on_the_terminal_after_a_draw_counts(clock):
    first, *others = waits(clock, [(0.003, 0.005)] * 4, share=1 / 40)
    assert first == pytest.approx(0.12) and others == pytest.approx([0.32] * 3)


def test_keys_between_draws_do_not_hold_up_the_screen_for_long(clock):
    assert max(waits(clock, [(0.005, 0.5)] * 4, share=1 / 40)) == LEAST_OFTEN_S


def test_less_is_drawn_where_every_core_computes(monkeypatch):
    monkeypatch.setattr(pace, "BUSY_SHARE", 1 / 40)
    monkeypatch.setattr(pace, "physical_cores", lambda: 4)
    assert share_beside(3) == pace.SHARE > share_beside(4) == share_beside(8) == 1 / 40

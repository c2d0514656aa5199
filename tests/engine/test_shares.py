"""Decode's share: what its target asks for, in units finer than a worker."""

from types import SimpleNamespace

import pytest
from tiny import V3

from localmoe.engine.shares import (
    AIM,
    LEAD,
    PRESSED,
    UNITS,
    Share,
    ShareControl,
    after_step,
    pressed_target_s,
    share_for,
    step_target_s,
    tiles_within,
)
from localmoe.model.config import read_config

MOST = 24


def test_before_anything_is_known_decode_goes_first():
    assert share_for(Share(5, MOST), 10.0, 0.05).units == MOST


def test_a_step_that_takes_all_workers_half_of_its_target_gets_half_of_them():
    known = after_step(Share(MOST, MOST), 10.0, seconds=0.025, bulk_s=0.0)
    assert share_for(known, 10.0, 0.05).units == UNITS // 2
    assert tiles_within(share_for(known, 10.0, 0.05), 0.05) == pytest.approx(10.0)


@pytest.mark.parametrize(("tiles", "units"), [(5.0, 8), (10.0, 16), (10.1, 17), (14.9, 24), (100.0, MOST)])
def test_more_tiles_take_a_larger_share_up_to_the_most(tiles, units):
    known = after_step(Share(16, MOST), 10.0, seconds=0.025, bulk_s=0.0)
    assert share_for(known, tiles, 0.05).units == units


def test_a_tighter_target_takes_a_larger_share():
    known = after_step(Share(MOST, MOST), 10.0, seconds=0.01, bulk_s=0.0)
    shares = [share_for(known, 10.0, target_s).units for target_s in (1.0, 0.1, 0.05, 0.02)]
    assert shares == [1, 4, 7, 16]


@pytest.mark.parametrize(
    ("ahead_s", "times"), [(0.0, 0.75), (0.1, 1.0), (0.3, 1.5), (9.0, 2.0), (-0.05, 0.625), (-9.0, 0.5)]
)
def test_an_answer_ahead_of_its_target_may_take_longer_steps_and_one_behind_shorter_ones(ahead_s, times):
    assert step_target_s(0.05, ahead_s) == pytest.approx(AIM * times * 0.05)


@pytest.mark.parametrize(
    ("ahead_s", "times"), [(9.0, 4.0), (0.0, 4.0), (-0.05, 4.0), (-0.1, 3.0), (-0.2, 1.0), (-9.0, 0.5)]
)
def test_for_a_prompt_pressed_for_time_an_answer_gives_what_it_can_make_up_for(ahead_s, times):
    assert pressed_target_s(0.05, ahead_s) == pytest.approx(AIM * times * 0.05)


def test_what_prefill_had_of_a_step_is_not_what_the_step_took():
    alone = after_step(Share(MOST, MOST), 10.0, seconds=0.025, bulk_s=0.0)
    beside = after_step(Share(16, MOST), 10.0, seconds=0.050, bulk_s=0.025)
    assert alone.tile_s == beside.tile_s


def test_one_slow_step_does_not_move_the_share_far():
    share = after_step(Share(MOST, MOST), 10.0, seconds=0.01, bulk_s=0.0)
    for _ in range(20):
        share = after_step(share_for(share, 10.0, 0.05), 10.0, seconds=0.01, bulk_s=0.0)
    slow = after_step(share, 10.0, seconds=0.02, bulk_s=0.0)
    assert share_for(slow, 10.0, 0.05).units <= 1.3 * share_for(share, 10.0, 0.05).units + 1


def on_target(target_s: float) -> tuple[float, float]:
    """An answer that is as far ahead as is aimed for."""
    return target_s, LEAD * target_s


class Pool:
    num_workers = 2

    def __init__(self) -> None:
        self.share, self.bulk_s = 1.0, 0.0

    def counters(self):
        return SimpleNamespace(busy_s=[(0.0, self.bulk_s / 2)] * 2)


def test_the_pool_gets_the_share_before_each_step():
    pool = Pool()
    control = ShareControl(pool, read_config(V3), most=0.75)
    control.begin([on_target(0.05)], 0.0)
    assert pool.share == 0.75
    control.end(1, 0.01)
    control.begin([on_target(0.05)], 0.0)
    assert pool.share == pytest.approx(0.2 / AIM, abs=1 / UNITS)
    control.begin([on_target(0.1)], 0.0)
    assert pool.share == pytest.approx(0.1 / AIM, abs=1 / UNITS)
    control.begin([on_target(0.1), on_target(0.05)], 0.0)
    assert pool.share > 0.2 / AIM, "the tightest decides"
    control.begin([on_target(0.1)] * 8, 0.0)  # eight streams choose more experts, not eight times as many
    assert 0.15 / AIM < pool.share < 0.75


def test_a_prompt_pressed_for_time_gets_what_it_needs_as_far_as_answers_can_give_it():
    pool = Pool()
    control = ShareControl(pool, read_config(V3), most=0.75)
    control.begin([on_target(0.02)], 0.0)
    control.end(1, 0.01)

    def share(needed, ahead_s=0.04):
        control.begin([(0.02, ahead_s)], needed)
        return pool.share

    wanted = share(0.0)
    assert wanted == pytest.approx(0.5 / AIM, abs=1 / UNITS)
    assert share(0.3) == wanted, "there is enough for both"
    assert share(0.6) == pytest.approx(0.4, abs=1 / UNITS)
    assert share(1.0) == pytest.approx(0.5 / (PRESSED * AIM), abs=1 / UNITS)
    assert share(1.0, ahead_s=-1.0) == 0.75, "who is behind gives nothing"

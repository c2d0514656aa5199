"""From spans to lanes: nothing is counted twice, and nothing that was is lost."""

import random

import pytest

from localmoe.devices.spans import Span
from localmoe.engine.lanes import FINEST_S, WINDOW_S, LaneWindow


def load(start_s, end_s, num_bytes=0, *, device="a", layer=0, group=0):
    return Span(device, "load", layer, group, start_s, end_s, num_bytes)


def compute(start_s, end_s, *, device="a", layer=0, stage="experts"):
    return Span(device, stage, layer, -1, start_s, end_s)


def event_of(*spans, now_s=100.0, window=None):
    window = window or LaneWindow(num_layers=8, num_dense=2)
    window.add(spans)
    return window.event(now_s)


def test_a_long_span_is_told_as_it_was():
    lanes = event_of(load(98.0, 99.5, 600, layer=3, group=7)).lanes
    assert [(lane.device, lane.stage, lane.busy_s, lane.num_bytes) for lane in lanes] == [("a", "load", 1.5, 600)]
    assert lanes[0].spans == ((3, 7, -2.0, -0.5, 1.5, 600),)
    assert lanes[0].rate_bytes_s == 400


def test_short_spans_are_told_as_one_with_the_time_that_they_were_busy():
    step = FINEST_S / 10
    spans = [load(99 + n * step, 99 + (n + 0.5) * step, 8, group=n) for n in range(10)]
    (lane,) = event_of(*spans).lanes
    (span,) = lane.spans
    assert span.num_bytes == 80 and span.group == 9
    assert span.busy_s == pytest.approx(5 * step, abs=1e-5)
    assert span.end_s - span.start_s == pytest.approx(9.5 * step, abs=1e-5)


def test_what_runs_at_once_counts_once():
    (lane,) = event_of(load(98.0, 99.0, 10), load(98.5, 99.5, 10), load(98.1, 98.9, 10)).lanes
    assert lane.busy_s == pytest.approx(1.5) and lane.num_bytes == 30


def test_of_a_span_that_began_before_the_window_only_the_rest_counts():
    (lane,) = event_of(load(94.0, 98.0, 1000)).lanes
    assert lane.busy_s == pytest.approx(2.0) and lane.num_bytes == 500


def test_the_window_moves_on_and_stays_small():
    window, random_ = LaneWindow(), random.Random(1)
    now_s = 0.0
    for _ in range(200):
        spans = [
            load(now_s + t, now_s + t + random_.random() * 0.01, 1)
            for t in (random_.random() * 0.25 for _ in range(50))
        ]
        now_s += 0.25
        window.add(spans)
        (lane,) = window.event(now_s).lanes
        assert len(lane.spans) <= WINDOW_S / FINEST_S + 2
        assert lane.busy_s <= WINDOW_S + 1e-3
    assert lane.num_bytes == pytest.approx(50 * WINDOW_S / 0.25, rel=0.02)
    assert window.event(now_s + WINDOW_S + 1).lanes == ()


def test_stages_are_lanes_of_their_device():
    spans = [compute(99, 99.1, device="b", stage="exchange"), compute(99, 99.1, stage="attention"), load(99, 99.1)]
    spans += [compute(99.2, 99.3), compute(99.2, 99.3, device="b", stage="unload")]
    lanes = event_of(*spans).lanes
    found = [(lane.device, lane.stage) for lane in lanes]
    assert found == [("a", "load"), ("a", "compute"), ("b", "exchange"), ("b", "unload")]
    assert lanes[1].busy_s == pytest.approx(0.2)


def test_overlap_is_the_longer_of_both_over_the_time_they_took():
    assert event_of(load(98, 99), compute(98, 99)).overlap == pytest.approx(1)
    assert event_of(load(97, 98), compute(98, 99)).overlap == pytest.approx(0.5)
    assert event_of(load(97, 98.5), compute(98, 99)).overlap == pytest.approx(0.75)
    both = (load(98, 99), compute(98, 99), load(97, 98, device="b"), compute(98, 99, device="b"))
    assert event_of(*both).overlap == pytest.approx((1 + 1) / (1 + 2))


def test_overlap_is_of_devices_that_do_both_and_not_of_pauses():
    assert event_of(compute(98, 99)).overlap is None
    assert event_of(load(98, 99), compute(98, 99), compute(97, 99, device="cpu")).overlap == pytest.approx(1)
    apart = (load(96.5, 97), compute(96.5, 97), load(99, 99.5), compute(99, 99.5))
    assert event_of(*apart).overlap == pytest.approx(1)


def test_the_layer_is_the_last_one_computed():
    event = event_of(compute(98, 98.1, layer=3), load(98.1, 99, layer=5), compute(98.1, 98.2, layer=4))
    assert (event.layer, event.num_layers) == (7, 8)
    assert event_of(compute(98, 98.1, layer=6)).layer == 8  # the head is no layer
    assert event_of(compute(98, 98.1, layer=-1, stage="pass")).layer is None
    assert event_of(compute(90, 90.1, layer=3)).layer is None  # long ago

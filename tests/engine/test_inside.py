"""The view into the engine beside a loop that works: what was done, by whom, when."""

import json
import time
from types import SimpleNamespace

import pytest
from toy import ToyEngine

from localmoe.engine.inside import Inside
from localmoe.events import Heat, Lane, Lanes, LaneSpan, Stats, Workers, decode, encode

EVENTS = [
    Lanes(12.5, 4.0, (Lane("cuda:0", "load", 1.5, 99, (LaneSpan(3, 41, -2.5, -1.0, 1.5, 99),)),), 0.97, 41, 61),
    Lanes(12.5, 4.0, ()),
    Heat(4, 256, 16, ((1, 2), (3, 0))),
    Stats(1, 0, 2, 0, 3, 4096, decode_now_tok_s=9.5, cache_used_bytes=77, workers=Workers(64, 60.2, 3.8, 9, 1, 2, 3)),
]


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_json(event):
    assert decode(json.loads(json.dumps(encode(event)))) == event


def looks(stream):
    return [e for e in stream.events() if isinstance(e, Lanes)]


def test_runs_of_a_program_that_records_nothing_are_spans():
    with ToyEngine(chunk=500, token_s=0.001) as engine:
        start_s = time.perf_counter()
        told = looks(engine.ask([9] * 400, max_tokens=5))
        wall_s = time.perf_counter() - start_s
    assert 2 <= len(told) <= 2 + wall_s / 0.25  # while the one chunk is read, and at the end
    (lane,) = told[0].lanes
    assert (lane.device, lane.stage) == ("cpu", "compute")
    assert 0.15 <= lane.busy_s <= 0.5 * wall_s + 0.25  # what runs still is told as far as it is
    assert told[-1].lanes[0].busy_s == pytest.approx(0.404, rel=0.5)
    assert told[-1].overlap is None and told[-1].layer is None


def test_many_short_chunks_tell_no_more_than_four_times_a_second():
    with ToyEngine(chunk=16, token_s=0.001) as engine:
        start_s = time.perf_counter()
        told = looks(engine.ask([9] * 500, max_tokens=1))
        assert 2 <= len(told) <= 2 + (time.perf_counter() - start_s) / 0.25


class Pool:
    num_workers = 2
    share = 0.5

    def __init__(self) -> None:
        self.busy_s = [[0.0, 0.0], [0.0, 0.0]]

    def counters(self):
        waits = {"num_waits": 3, "wait_p50_us": 10.0, "wait_p99_us": 20.0, "wait_max_us": 30.0}
        return SimpleNamespace(busy_s=[tuple(pair) for pair in self.busy_s], **waits)


def test_workers_are_those_at_work_since_the_last_look():
    pool = Pool()
    inside = Inside(pool=pool)
    inside.workers()
    time.sleep(0.1)
    pool.busy_s = [[0.05, 0.0], [0.05, 0.02]]
    found = inside.workers()
    assert found.num_workers == 2 and 0 < found.urgent <= 1.0
    assert found.bulk == pytest.approx(found.urgent / 5)
    assert (found.num_waits, found.wait_p50_us, found.wait_p99_us, found.wait_max_us) == (3, 10.0, 20.0, 30.0)
    assert found.share == 0.5
    assert inside.workers().urgent == 0
    assert Inside().workers() is None

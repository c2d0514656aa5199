"""Suite mixed: what it measures, at sizes that take seconds."""

import math
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.bench.kernels import make_workers
from localmoe.bench.mixed import beside, goodput, preempt, rivals
from localmoe.bench.mixed.goodput import Alone, Factors, Found, Result, Search, System, Trial
from localmoe.bench.mixed.trace import LONG_TOKENS, NUM_REQUESTS, SHORT_TOKENS, arrivals
from localmoe.bench.shapes import Shapes
from localmoe.engine.instance import Instance, opened
from localmoe.settings import Settings

SMALL = Shapes(hidden=256, inter=128, num_experts=8, top_k=2, heads=4, few_heads=2, context=128, chunk=48)
LOOSE = (Factors(1e6, 1e6), Factors(1e6, 1e6))


class Quiet:
    def progress(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        raise AssertionError(text)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    model = make_checkpoint(tmp_path_factory.mktemp("mixed") / "tiny", **SHAPES["v3"])
    with opened(Settings(threads=2, prefill_chunk=256), str(model)) as ground:
        yield ground


def test_waits_of_urgent_tiles_come_with_the_longest_bulk_tile_of_their_run():
    rows = {row.case: row for row in preempt.measure(make_workers(Settings(threads=2)), Quiet(), SMALL, seconds=0.5)}
    assert set(rows) == {"preempt-p50", "preempt-p99", "preempt-max"}
    p50, p99, most = (rows[f"preempt-{name}"].value for name in ("p50", "p99", "max"))
    assert 0 < p50 <= p99 <= 1.125 * most
    assert len({row.reference for row in rows.values()}) == 1 and rows["preempt-p99"].reference > 0


def test_both_phases_beside_each_other_come_with_what_they_may_take(ground):
    before = ground.pool.share
    rows = {row.case: row for row in beside.measure(ground, Quiet(), window_s=0.3, rounds=2)}
    for case in ("mixed-tpot", "mixed-prefill"):
        assert rows[case].value > 0 and rows[case].ratio > 0 and math.isfinite(rows[case].ratio)
    assert rows["urgent-wait-p50"].value <= 1.125 * rows["urgent-wait-max"].value
    assert ground.pool.share == before


def test_the_trace_is_the_same_at_every_rate_but_for_its_pace():
    slow, fast = list(arrivals(0.5)), list(arrivals(5.0))
    assert len(slow) == NUM_REQUESTS
    assert [replace(a, since_s=0) for a in slow] == [replace(a, since_s=0) for a in fast]
    assert [a.since_s for a in slow] == pytest.approx([10 * a.since_s for a in fast])
    assert {a.prompt for a in slow} == {SHORT_TOKENS, LONG_TOKENS} and {a.target for a in slow} == {0, 1}


SYSTEMS = {
    "ours": rivals.ours,
    "exclusive": rivals.exclusive,
    "chunked": lambda ground: rivals.chunked(ground, 64),
    "split": rivals.split,
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_gives_the_same_answers(ground, name):
    found = []
    for make in (SYSTEMS[name], Instance):
        instance = make(ground)
        jobs = [instance.ask(30 + 90 * n, 12, seed=n) for n in range(4)]
        for job in jobs:
            assert list(job.stream.events())[-1].reason == "length"
        found.append([job.output for job in jobs])
        instance.close()
    assert found[0] == found[1]
    assert ground.network.cache.free_pages == ground.network.cache.num_pages


def test_targets_decide_whether_a_rate_is_kept_to(ground):
    alone = Alone({SHORT_TOKENS: 1.0, LONG_TOKENS: 1.0}, 1.0)
    impossible = (LOOSE[0], Factors(1e-6, 1e-6))
    for classes, expected in ((LOOSE, True), (impossible, False)):
        instance = rivals.ours(ground)
        assert Trial(instance, alone, classes).keeps(rate=50.0) is expected
        instance.close()


def test_an_answer_that_takes_longer_than_all_its_tokens_may_is_late_before_it_ends():
    meter = SimpleNamespace(ttft_s=0.0, decode_tok_s=None)
    job = SimpleNamespace(
        meter=meter, since_s=time.monotonic(), stream=SimpleNamespace(ended=False, cancel=lambda: None)
    )
    instance = SimpleNamespace(ask=lambda *_: job)
    alone = Alone({SHORT_TOKENS: 1.0, LONG_TOKENS: 1.0}, 1.0)
    assert not Trial(instance, alone, (Factors(1e6, 1e-6),) * 2).keeps(rate=50.0)


def test_what_requests_take_alone_is_not_found_in_the_cache_and_does_not_stay_there(ground, monkeypatch):
    jobs, seeds = [], count()
    asked = Instance.ask
    monkeypatch.setattr(Instance, "ask", lambda *a: jobs.append(asked(*a)) or jobs[-1])
    for _ in range(2):
        assert goodput._alone(ground, seeds).of_a_request_s > 0
        assert ground.network.cache.free_pages == ground.network.cache.num_pages
    assert len({tuple(job.prompt) for job in jobs}) == len(jobs) == 12


class Steps(Search):
    """A search whose systems keep to the steps up to a number of their own."""

    def __init__(self, most, num_runs=100):
        super().__init__(lambda: Alone({SHORT_TOKENS: 1.0, LONG_TOKENS: 1.0}, 1.0), LOOSE, Quiet(), 1.0, 0.0)
        self.most, self.left = most, num_runs

    def _has_time(self):
        return self.left > 0

    def _keeps(self, system, step):
        self.left -= 1
        return step <= self.most[system.name]


A, B = System("a", None), System("b", None)


@pytest.mark.parametrize(("a", "b"), [(3, 1), (1, 3), (-4, -5), (-3, -1), (0, 0)])
def test_the_largest_rate_of_several_systems_is_found(a, b):
    search = Steps({"a": a, "b": b})
    result = search.best_of([A, B])
    assert result == Result(Found(A if a >= b else B, max(a, b)), max(a, b) + 1)
    assert search.rate(result.above) == pytest.approx(1.25 * search.rate(result.found.step))


@pytest.mark.parametrize("more", range(12))
def test_looser_targets_are_looked_for_from_there(more):
    assert Steps({"a": -3 + more}).climb_from(Found(A, -3)) == Result(Found(A, -3 + more), -2 + more)


@pytest.mark.parametrize(("rival", "found"), [(5, 5), (2, 2), (1, 1), (-2, -2), (-3, None)])
def test_a_rival_is_found_from_our_rate_up_or_a_few_steps_below(rival, found):
    search = Steps({"a": 2, "b": rival})
    search.look_below(search.best_of([A]).found)
    expected = Result(None, -2) if found is None else Result(Found(B, found), found + 1)
    assert search.best_of([B]) == expected


def test_nothing_is_found_where_every_rate_is_too_high():
    assert Steps({"a": -100, "b": -100}).best_of([A, B]) == Result(None, -8)


@pytest.mark.parametrize("num_runs", range(20))
def test_a_search_that_the_time_ends_says_what_it_knows(num_runs):
    most = {"a": 3, "b": -1}
    for group, best in (([A], 3), ([B], -1), ([A, B], 3)):
        result = Steps(most, num_runs).best_of(group)
        if result is None:
            assert num_runs <= len(group)
        else:
            assert result.above > best and (result.found is None or result.found.step <= best)
    whole = Steps(most).best_of([A, B])
    assert Steps(most, 8).best_of([A, B]) == whole and Steps(most, 5).best_of([A, B]) != whole


def test_rows_of_what_is_known_and_of_what_is_only_bounded():
    search = Steps({})
    results = {
        "ours": Result(Found(A, 0), 1),
        "exclusive": Result(Found(B, -2), -1),
        "split": Result(None, -4),
        "chunked": Result(Found(B, -6), -4),  # the time ended before the one between was tried
    }
    rows = {row.case: row for row in goodput._rows("goodput", search, results, "avx2")}
    against = {
        "exclusive": ("exclusive's", 2),
        "split": ("more than split's", 4),
        "chunked": ("more than chunked's", 4),
    }
    assert set(rows) == {f"goodput-vs-{name}" for name in against}
    for name, (words, steps) in against.items():
        row = rows[f"goodput-vs-{name}"]
        assert (row.against, row.ratio) == (words, pytest.approx(1.25**steps))
    assert not list(goodput._rows("goodput", search, {}, "avx2"))

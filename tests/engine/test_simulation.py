"""The scheduler's promises, held over thousands of requests on a clock that is only counted."""

import numpy as np
import pytest
from simulator import PAGE, Asked, Pace, Simulator, trace

from localmoe.engine.scheduler import MAX_BEGUN, PATIENCE, Limits

LIMITS = Limits(512)
PASSING = Limits(512, passing=128)
WAYS = {"turns": (False, LIMITS), "together": (True, LIMITS), "passing": (True, PASSING)}
MANY = 2000


def simulated(requests, num_pages=1000, together=True, limits=LIMITS, pace=None) -> Simulator:
    simulator = Simulator(requests, limits, num_pages, pace or Pace(), together)
    simulator.run()
    return simulator


@pytest.fixture(params=WAYS)
def way(request) -> dict:
    """How both phases run."""
    together, limits = WAYS[request.param]
    return {"together": together, "limits": limits}


def overtaken(requests, read_tok_s: float):
    """Pairs (earlier, later) where the later one's reading began first."""
    begun = sorted((r for r in requests if r.begun_s is not None and not r.num_evicted), key=lambda r: r.since_s)
    for n, later in enumerate(begun):
        for earlier in begun[max(0, n - 200) : n]:
            if later.begun_s < earlier.begun_s:
                yield earlier, later


@pytest.mark.parametrize("rate", [0.1, 0.25])
def test_thousands_of_requests_all_end(way, rate):
    requests = trace(1, MANY, rate)
    simulator = simulated(requests, **way)
    assert {r.reason for r in requests} == {"length"}
    assert all(r.made == r.answer for r in requests)
    assert simulator.most_batch <= LIMITS.batch


def test_nobody_is_passed_by_who_came_after_its_time_was_up(way):
    requests = trace(2, MANY, 0.25)
    simulated(requests, **way)
    pairs = list(overtaken(requests, Pace().read_tok_s))
    assert pairs, "a short prompt passes a long one now and then"
    for earlier, later in pairs:
        assert later.since_s - earlier.since_s <= PATIENCE * earlier.prompt / Pace().read_tok_s
        assert later.prompt < earlier.prompt


def test_prompts_of_one_length_are_read_in_order():
    requests = trace(3, MANY, 0.4)
    for request in requests:
        request.prompt = 300
    simulated(requests)
    assert not list(overtaken(requests, Pace().read_tok_s))


def test_a_short_prompt_waits_for_shorts_and_one_chunk_but_not_for_a_long_one():
    long = [Asked(n, 0.0, 20_000, 5) for n in range(3)]
    short = [Asked(10 + n, 5.0 + 10 * n, 50, 5) for n in range(20)]
    simulated([*long, *short])
    chunk_s = Pace().read_s(512) / (1 - Pace().share)
    for request in short:
        assert request.first_s - request.since_s <= chunk_s + Pace().read_s(50) / (1 - Pace().share) + 1e-6


def test_a_short_prompt_waits_for_no_chunk_where_it_can_pass():
    long = [Asked(n, 0.0, 20_000, 5) for n in range(3)]
    short = [Asked(10 + n, 5.0 + 10 * n, 50, 5) for n in range(20)]
    simulated([*long, *short], limits=PASSING)
    for request in short:
        assert request.first_s - request.since_s <= Pace().read_s(50) / (1 - Pace().share) + 1e-6


@pytest.mark.parametrize("limits", [LIMITS, PASSING])
def test_a_long_prompt_is_read_although_short_ones_never_stop_coming(limits):
    long = Asked(0, 0.0, 4000, 1)
    short = [Asked(1 + n, 0.2 * n, 100, 1) for n in range(800)]  # more than the machine can read
    simulated([long, *short], limits=limits)
    served = sum(r.prompt for r in short if r.begun_s < long.first_s)
    patience_s = PATIENCE * 4000 / Pace().read_tok_s
    assert long.begun_s <= patience_s + 2 * PATIENCE * 100 / Pace().read_tok_s + served / Pace().read_tok_s
    assert max(r.since_s for r in short if r.begun_s < long.first_s) <= patience_s


@pytest.mark.parametrize("limits", [LIMITS, PASSING])
def test_how_often_a_prompt_gives_way_is_bounded(limits):
    requests = trace(4, MANY, 0.25)
    simulator = simulated(requests, limits=limits)
    assert any(r.gave_way for r in requests)
    assert simulator.most_begun <= MAX_BEGUN
    for r in requests:
        patience_s = PATIENCE * r.prompt / Pace().read_tok_s
        could = sum(o.prompt < r.prompt and r.since_s < o.since_s <= r.since_s + patience_s for o in requests)
        assert r.num_evicted or r.gave_way <= could


@pytest.mark.parametrize("num_pages", [-(-6100 // PAGE), 150, 300])
def test_memory_is_never_over_budget_and_nobody_is_lost(way, num_pages):
    requests = trace(5, 500, 0.25)
    simulator = simulated(requests, num_pages, **way)
    assert simulator.most_pages <= num_pages
    assert {r.reason for r in requests} == {"length"}


def test_answers_that_outgrow_the_memory_begin_again_and_end():
    requests = [Asked(n, 0.1 * n, 300, 400) for n in range(50)]
    simulator = simulated(requests, num_pages=30)
    assert any(r.num_evicted for r in requests) and simulator.most_pages <= 30
    assert {r.reason for r in requests} == {"length"}
    assert not requests[0].num_evicted, "the oldest keeps its pages"


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_batch_is_no_larger_than_the_plan_says(batch):
    requests = trace(6, 300, 0.25)
    assert simulated(requests, limits=Limits(512, batch)).most_batch <= batch
    assert {r.reason for r in requests} == {"length"}


def test_cancels_and_failures_are_their_own(way):
    random = np.random.default_rng(7)
    requests = trace(7, MANY, 0.25)
    for r in requests:
        r.cancel_s = r.since_s + float(random.exponential(20)) if random.random() < 0.3 else r.cancel_s
        r.fails = random.random() < 0.05
    simulated(requests, num_pages=150, **way)
    assert {r.reason for r in requests} == {"length", "cancelled", "failed"}
    for r in requests:
        if r.reason == "failed":
            assert r.fails
        if r.reason == "cancelled":
            assert r.ended_s >= r.cancel_s
        if r.cancel_s == float("inf") and not r.fails:
            assert r.reason == "length"


def test_at_once_answers_go_on_at_their_share_while_a_prompt_is_read():
    answer, prompt = Asked(0, 0.0, 5, 2000), Asked(1, 3.0, 5000, 1)
    simulator = simulated([answer, prompt])
    beside_s = prompt.ended_s - prompt.begun_s
    assert beside_s == pytest.approx(sum(Pace().read_s(n) for _, r, n in simulator.log if r is prompt) * 2, rel=0.01)
    alone = Asked(0, 0.0, 5, 2000)
    simulated([alone])
    assert answer.ended_s - alone.ended_s == pytest.approx(beside_s / 2, rel=0.01)

"""The share, batch and chunk that answer the most requests within their targets, and what is said of them."""

import itertools
from dataclasses import replace

import pytest
from planned import FULL, MOONLIGHT, RATES, machine, planned

from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import forecast_decode
from localmoe.engine.cost.serving import CHUNKS, CONTEXT_TOKENS, FEW, NEARLY, Aims, serve
from localmoe.settings import Settings

AIMS = Aims(ttft_s=30.0, tpot_s=0.2, most_share=0.75, most_batch=8)
PLACEMENT = Placement(chunk=512)


def found(aims=AIMS, config=FULL):
    return serve(RATES, config, PLACEMENT, aims)


@pytest.mark.parametrize("tpot_s", [0.15, 0.2, 0.3, 1.0])
def test_the_share_is_what_a_step_of_the_batch_takes_of_its_target(tpot_s):
    serving = found(replace(AIMS, tpot_s=tpot_s))
    step_s = forecast_decode(RATES, FULL, PLACEMENT, CONTEXT_TOKENS, serving.batch).term.seconds
    assert serving.is_reached and serving.step_s == step_s
    assert serving.share == pytest.approx(step_s / tpot_s) and serving.share <= 0.75


def test_looser_targets_never_answer_fewer_requests():
    rates = [found(replace(AIMS, tpot_s=tpot_s)).requests_s for tpot_s in (0.12, 0.2, 0.5, 2.0)]
    for tighter, looser in itertools.pairwise(rates):
        assert looser >= NEARLY * tighter
    batches = [found(replace(AIMS, tpot_s=tpot_s)).batch for tpot_s in (0.12, 0.2, 2.0)]
    assert batches == sorted(batches) and batches[0] < batches[-1]


def test_a_tight_time_to_the_first_token_takes_shorter_chunks():
    chunks = [found(replace(AIMS, ttft_s=ttft_s)).chunk for ttft_s in (1e3, 60.0, 30.0)]
    assert chunks == sorted(chunks, reverse=True) and chunks[0] == 512 > chunks[-1] >= CHUNKS[0]


def test_no_smaller_batch_answers_many_more():
    best = found()
    for batch in range(1, 9):
        assert NEARLY * found(replace(AIMS, most_batch=batch)).requests_s <= best.requests_s


def test_targets_out_of_reach_are_said_to_be_and_a_few_are_answered_together():
    serving = found(replace(AIMS, tpot_s=0.001))
    assert not serving.is_reached and serving.batch >= FEW
    plan = planned(machine(), settings=Settings(tpot_target_ms=1.0))
    assert any("out of reach" in reason for reason in plan.reasons)


def test_the_plan_runs_what_was_found_and_says_so():
    settings = Settings(tpot_target_ms=200.0)
    plan = planned(machine(), settings=settings)
    assert plan.kind != "cpu" or (plan.batch, plan.beside_chunk) == (found().batch, found().chunk)
    small = planned(machine(), MOONLIGHT, settings=replace(settings, plan="cpu"))
    (said,) = (reason for reason in small.reasons if reason.startswith("side by side"))
    assert f"{small.batch} answers" in said and "200 ms" in said and "30 s" in said

"""From rates to who computes what: experts of a prompt, and steps of several streams."""

from dataclasses import replace

import numpy as np
import pytest
from test_cost import ONE_GPU, RATES, measured
from tiny import DEEPSEEK_V3

from localmoe.engine.cost import decode
from localmoe.engine.cost.routing import typical_counts
from localmoe.engine.cost.sharing import alternates, hot_pays, layer_times, shares_from, split_rates
from localmoe.model.config import read_config
from localmoe.prefill.split import split

V3 = read_config(DEEPSEEK_V3)
EXPERT = 3 * 7168 * 2048


def test_rates_of_an_expert_are_those_of_its_bytes_and_flops():
    found = split_rates(RATES, V3)
    num_bytes = EXPERT + 4 * 3 * 16 * 56  # one scale to a block
    assert found.move_s == pytest.approx(num_bytes / 25e9)
    assert found.device_token_s == pytest.approx(2 * EXPERT / 100e12)
    assert found.cpu_expert_s + found.cpu_token_s == pytest.approx(num_bytes / 360e9)
    assert found.cpu_expert_s + 256 * found.cpu_token_s == pytest.approx(2 * 256 * EXPERT / (0.7 * 4e12))


@pytest.mark.parametrize(("num_tokens", "least", "most"), [(1, 0.0, 0.0), (64, 0.0, 0.2), (512, 0.1, 0.9)])
def test_the_longer_the_prompt_the_more_goes_to_the_gpu(num_tokens, least, most):
    counts = np.random.default_rng(0).multinomial(8 * num_tokens, np.full(256, 1 / 256))
    found = split(counts, split_rates(RATES, V3))
    share = len(found.device) / max(1, int((counts > 0).sum()))
    assert least <= share <= most


def test_prompts_are_shared_from_some_length_on():
    slow = replace(RATES, gpus=(replace(RATES.gpus[0], h2d=measured(2e9)),))
    least = shares_from(slow, V3, 9, 1024)
    assert 9 < least < 1024
    assert shares_from(slow, V3, least + 1, 1024) == least + 1 and shares_from(slow, V3, 9, least - 1) is None
    assert shares_from(RATES, V3, 9, 1024) <= least
    crawling = replace(RATES, gpus=(replace(RATES.gpus[0], h2d=measured(1e6)),))
    assert shares_from(crawling, V3, 9, 1024) is None


def test_typical_counts_add_up_to_what_is_chosen():
    for num_tokens in (1, 64, 1000):
        found = typical_counts(V3, num_tokens)
        assert found.shape == (256,) and (np.diff(found) >= 0).all()
        assert found.sum() == pytest.approx(8 * num_tokens, rel=0.05)


def test_hot_experts_are_worth_it_from_some_number_on():
    assert not hot_pays(RATES, V3, 1) and hot_pays(RATES, V3, 58 * 256)


def test_a_layer_of_a_step_is_its_parts():
    found = layer_times(RATES, V3, ONE_GPU, 4096, 4)
    term = decode.step(RATES, V3, ONE_GPU, 4096, 4)
    assert found.cpu_s == pytest.approx(term.find("mixture").seconds / 58)
    rest_s = term.seconds - term.find("mixture").seconds - term.find("head").seconds
    assert found.device_s == pytest.approx(rest_s / 61)


def test_streams_alternate_only_where_both_sides_take_long():
    """Four streams choose nearly four times as many experts as one; the GPU reads its weights for each batch again."""
    assert not alternates(RATES, V3, ONE_GPU, 4096, 1)
    slow_links = replace(RATES.gpus[0], layer=measured(1e-5), memory=measured(1e13))
    at_once = replace(RATES, gpus=(slow_links,))
    assert not alternates(at_once, V3, ONE_GPU, 1, 4)  # the GPU has next to nothing to do
    long = {context: alternates(at_once, V3, ONE_GPU, context, 16) for context in (1, 500_000)}
    assert long == {1: False, 500_000: True}  # attention is each stream's own, and takes as long as experts

import time
from collections import Counter

import numpy as np
import pytest

from localmoe.decode.sampler import Sampler, likeliest, penalised
from localmoe.engine.request import Sampling
from localmoe.errors import VerificationError

VOCAB = 129_280


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, dtype=np.float32))


def draws(sampling: Sampling, logits: np.ndarray, count: int = 2000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.pick(logits) for _ in range(count))


def test_temperature_zero_takes_the_first_of_the_best():
    assert Sampler(Sampling(temperature=0)).pick(np.array([1, 3, 3, 2], np.float32)) == 1


def test_frequencies_follow_the_probabilities():
    counts = draws(Sampling(temperature=1, top_p=1, seed=1), logits_of(0.5, 0.3, 0.2), 20_000)
    for token, p in enumerate((0.5, 0.3, 0.2)):
        assert counts[token] / 20_000 == pytest.approx(p, abs=0.015)


def test_temperature_sharpens():
    counts = draws(Sampling(temperature=0.5, top_p=1, seed=1), logits_of(0.5, 0.3, 0.2), 20_000)
    assert counts[0] / 20_000 == pytest.approx(0.25 / 0.38, abs=0.015)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    assert set(draws(Sampling(temperature=temperature), logits_of(0.4, 0.41, 0.19), 50)) == {1}


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.05, {1}), (0.6, {1}), (0.61, {1, 3}), (0.9, {0, 1, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_fewest_that_hold_it(top_p, kept):
    assert set(draws(Sampling(temperature=1, top_p=top_p, seed=2), logits_of(0.1, 0.6, 0.05, 0.25))) == kept


def test_min_p_is_relative_to_the_best():
    assert set(draws(Sampling(temperature=1, top_p=1, min_p=0.4, seed=3), logits_of(0.1, 0.6, 0.05, 0.25))) == {1, 3}


def test_min_p_and_top_p_together():
    assert set(draws(Sampling(temperature=1, top_p=0.9, min_p=0.3, seed=3), logits_of(0.1, 0.6, 0.05, 0.25))) == {1, 3}


def test_penalty_divides_positive_and_multiplies_negative_logits_once():
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    assert penalised(logits, [0, 1, 0], 2.0).tolist() == [1.0, -4.0, 1.0]
    assert logits.tolist() == [2.0, -2.0, 1.0]
    assert penalised(logits, [0], 1.0) is logits


def test_the_penalty_counts_prompt_and_output():
    sampler = Sampler(Sampling(temperature=0, repetition_penalty=3.0))
    assert sampler.pick(np.array([3.0, 2.0], np.float32), [0]) == 1


def test_a_seed_gives_the_same_tokens_and_none_does_not():
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32)

    def run(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=1, seed=seed))
        return [sampler.pick(logits) for _ in range(30)]

    assert run(7) == run(7) != run(8)
    assert run(None) != run(None)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(bad):
    logits = np.zeros(10, np.float32)
    logits[4] = bad
    for temperature in (0, 1):
        with pytest.raises(VerificationError, match="logit 4"):
            Sampler(Sampling(temperature=temperature)).pick(logits)
    with pytest.raises(VerificationError):
        Sampler(Sampling()).pick(np.full(10, -np.inf, np.float32))


def test_excluded_tokens_are_never_picked():
    logits = np.array([-np.inf, 0.0, -np.inf], np.float32)
    assert set(draws(Sampling(temperature=1, top_p=1), logits, 100)) == {1}


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.95, 0.999])
def test_the_nucleus_equals_a_full_sort(scale, top_p):
    weights = np.exp(np.random.default_rng(5).normal(size=20_000) * scale)
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order])
    expected = order[: int(np.searchsorted(sums, top_p * weights.sum())) + 1]
    got = likeliest(weights, top_p)
    assert len({*got.tolist()} ^ {*expected.tolist()}) <= 1  # sums differ in their last bits
    assert got.tolist() == sorted(got.tolist())


def test_a_large_vocabulary_takes_milliseconds():
    logits = (np.random.default_rng(1).normal(size=VOCAB) * 3).astype(np.float32)
    sampler = Sampler(Sampling(temperature=0.6, top_p=0.95))
    times = []
    for _ in range(9):
        start = time.perf_counter()
        sampler.pick(logits)
        times.append(time.perf_counter() - start)
    assert sorted(times)[4] < 0.03

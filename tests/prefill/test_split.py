"""How a layer's experts are shared between a device's link and the CPU."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localmoe.prefill.split import SplitRates, split

# An expert of 44 MB over 50 GB/s, and on 300 GB/s of memory with 4 TFLOP/s.
PCIE = SplitRates(0.88e-3, 20e-6, 0.3e-6, 0.15e-3, 22e-6)


def device_s(tokens, rates):
    """One expert after the other arrives, and is computed behind those before it."""
    arrived = done = 0.0
    for count in tokens:
        arrived += rates.move_s
        done = max(done, arrived) + rates.device_expert_s + count * rates.device_token_s
    return done


def cpu_s(tokens, rates):
    return sum(rates.cpu_expert_s + count * rates.cpu_token_s for count in tokens)


def best_of_all(counts, rates):
    """Of every choice there is."""
    used = [e for e in range(len(counts)) if counts[e]]
    seconds = []
    for num in range(len(used) + 1):
        for chosen in combinations(used, num):
            ours = sorted((counts[e] for e in chosen), reverse=True)
            rest = [counts[e] for e in used if e not in chosen]
            seconds.append(max(device_s(ours, rates), cpu_s(rest, rates)))
    return min(seconds)


rates_of_machines = st.builds(
    SplitRates,
    move_s=st.floats(0.2e-3, 5e-3),
    device_expert_s=st.floats(1e-6, 100e-6),
    device_token_s=st.floats(0.05e-6, 2e-6),
    cpu_expert_s=st.floats(0.05e-3, 2e-3),
    cpu_token_s=st.floats(2e-6, 500e-6),
)
some_counts = st.lists(st.integers(0, 400), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(counts=some_counts, rates=rates_of_machines)
def test_both_end_nearly_as_soon_as_they_can(counts, rates):
    found = split(np.asarray(counts), rates)
    ours = [counts[e] for e in found.device]
    rest = [count for e, count in enumerate(counts) if count and e not in found.device]
    assert found.device_s == pytest.approx(device_s(ours, rates))
    assert found.cpu_s == pytest.approx(cpu_s(rest, rates))
    is_faster = 10 * rates.device_token_s <= rates.cpu_token_s  # as devices are
    assert found.seconds <= (1.1 if is_faster else 4 / 3) * best_of_all(counts, rates)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(counts=some_counts, rates=rates_of_machines, factor=st.floats(0.1, 1.0))
def test_a_faster_link_takes_no_fewer_experts_and_a_faster_cpu_leaves_no_more(counts, rates, factor):
    counts = np.asarray(counts)
    found = split(counts, rates)
    faster = split(counts, replace(rates, move_s=factor * rates.move_s))
    assert set(found.device) <= set(faster.device) and faster.seconds <= found.seconds
    cpu = replace(rates, cpu_expert_s=factor * rates.cpu_expert_s, cpu_token_s=factor * rates.cpu_token_s)
    alone = split(counts, cpu)
    assert set(alone.device) <= set(found.device) and alone.seconds <= found.seconds


@settings(max_examples=100, deadline=None, derandomize=True)
@given(counts=some_counts, rates=rates_of_machines)
def test_it_is_never_slower_than_either_alone(counts, rates):
    used = sorted((count for count in counts if count), reverse=True)
    assert split(np.asarray(counts), rates).seconds <= min(device_s(used, rates), cpu_s(used, rates)) * (1 + 1e-9)


def test_experts_with_many_tokens_go_first_and_those_with_none_nowhere():
    counts = np.asarray([3, 0, 250, 40, 0, 250, 7])
    found = split(counts, PCIE)
    assert found.device == (2, 5)
    assert split(np.zeros(7, np.int64), PCIE).device == ()


def test_one_token_each_stays_on_the_cpu():
    """Reading an expert takes a sixth of moving it."""
    found = split(np.asarray([1] * 8 + [0] * 248), PCIE)
    assert len(found.device) <= 1


def test_a_long_prompt_moves_most():
    """4,096 tokens on 256 experts: the CPU keeps what it computes while the others come."""
    found = split(np.full(256, 4096 * 8 // 256), PCIE)
    assert len(found.device) > 180
    assert found.device_s == pytest.approx(found.cpu_s, rel=0.05)

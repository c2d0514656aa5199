"""When two batches in alternation take less time than one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localmoe.decode.alternation import LayerTimes, Measured, alternation_pays

seconds = st.floats(1e-5, 1e-1)


def test_it_pays_where_both_sides_take_long_and_halves_take_half():
    assert alternation_pays(LayerTimes(4e-3, 4e-3), LayerTimes(2e-3, 2e-3))
    assert alternation_pays(LayerTimes(2e-3, 4e-3), LayerTimes(1e-3, 2e-3))


def test_it_does_not_pay_where_halves_read_as_much_as_the_whole():
    """Two sessions choose twice as many experts as one, and a batch of one reads all attention weights too."""
    assert not alternation_pays(LayerTimes(1e-3, 4e-3), LayerTimes(1e-3, 3e-3))


def test_it_does_not_pay_where_one_side_has_nothing_to_do():
    assert not alternation_pays(LayerTimes(1e-5, 4e-3), LayerTimes(1e-5, 2e-3))


def simulated_s(half, num_layers):
    """Two halves, each going from device to CPU and back; either side takes one at a time, in order."""
    device_free = cpu_free = 0.0
    ready = [0.0, 0.0]
    for _ in range(num_layers):
        for n in range(2):
            device_free = attended = max(device_free, ready[n]) + half.device_s
            cpu_free = ready[n] = max(cpu_free, attended) + half.cpu_s
    return max(ready)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(device_s=seconds, cpu_s=seconds, share=st.floats(0.5, 1.0))
def test_the_rule_agrees_with_a_simulation(device_s, cpu_s, share):
    """`share`: what a half takes of the whole's time."""
    whole, half = LayerTimes(device_s, cpu_s), LayerTimes(share * device_s, share * cpu_s)
    num_layers = 1000
    alternating_s, one_s = simulated_s(half, num_layers), num_layers * (device_s + cpu_s)
    if alternation_pays(whole, half):
        assert alternating_s < 0.96 * one_s
    else:
        assert alternating_s > 0.94 * one_s


def test_nothing_alternates_before_it_was_measured():
    measured = Measured()
    assert not measured.pays(4)
    measured.add(4, LayerTimes(4e-3, 4e-3))
    assert not measured.pays(4)
    measured.add(2, LayerTimes(2e-3, 2e-3))
    assert measured.pays(4)
    assert not measured.pays(2)
    measured.add(2, LayerTimes(4e-3, 4e-3))  # the latest counts
    assert not measured.pays(4)


@pytest.mark.parametrize("num_tokens", [3, 5])
def test_of_an_odd_number_the_larger_half_decides(num_tokens):
    measured = Measured()
    measured.add(num_tokens, LayerTimes(4e-3, 4e-3))
    measured.add(num_tokens // 2 + 1, LayerTimes(2e-3, 2e-3))
    assert measured.pays(num_tokens)

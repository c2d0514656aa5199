"""Prompts that are streamed say what resident ones say: any ring, any group, any number of devices, any chunks."""

import parity_of_streams as streams
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import SHAPES

from localmoe.prefill.pipeline import Shape

parity = streams.parity


@pytest.fixture(params=SHAPES)
def case(request, tmp_path_factory):
    return parity.case_of(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_logits_are_those_of_the_resident_path(case, num_devices):
    truth = streams.resident(case, [100])
    with streams.opened(case, num_devices=num_devices) as pipeline:
        parity.assert_near(streams.logits(case, pipeline, [100]), truth, streams.SAME)
        assert pipeline.free_slots == tuple(lane.ring.num_slots for lane in pipeline._lanes)


@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("check", parity.EVERY_WAY)
def test_every_way_of_running_agrees(v3, check, num_devices):
    with streams.many() as make_program:
        check(v3, lambda *args: make_program(*args, num_devices=num_devices))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_one_go_agrees_with_the_oracle(v3, num_devices):
    with streams.many() as make_program:
        assert parity.check_one_go(v3, lambda *args: make_program(*args, num_devices=num_devices)) <= 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["v3", "moonlight", "no-shared", "odd-dims"]),
    num_devices=st.integers(1, 4),
    group=st.integers(1, 24),
    slots=st.integers(1, 9),
    sizes=st.sampled_from([[100], [1, 99], [60, 1, 7, 32], [37] + [1] * 3 + [60], [8, 9, 83]]),
    from_files=st.booleans(),
)
def test_any_shape_agrees(tmp_path_factory, name, num_devices, group, slots, sizes, from_files):
    case = parity.case_of(name, tmp_path_factory)
    shape = Shape(group, slots)
    with streams.opened(case, num_devices=num_devices, shape=shape, from_files=from_files) as pipeline:
        parity.assert_near(streams.logits(case, pipeline, sizes), streams.resident(case, [100]), streams.SAME)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_experts_on_several_nodes_are_streamed_part_by_part(v3, num_devices):
    case = parity.open_case(v3.folder, nodes=range(3))
    with streams.opened(case, num_devices=num_devices) as pipeline:
        parity.assert_near(streams.logits(case, pipeline, [60, 40]), streams.resident(v3, [100]), streams.SAME)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_cached_prefix_is_attended_to_and_not_read_again(v3, num_devices):
    """Written by the resident path, read on by the streamed one."""
    cache = v3.cache()
    table = cache.new_table()
    parity.run(streams.resident_program(v3, cache), table, v3.ids[:70], [70])
    with streams.opened(v3, num_devices=num_devices, cache=cache) as pipeline:
        rest = streams.logits(v3, pipeline, [20, 10], start=70, table=table)
    parity.assert_near(rest, streams.resident(v3, [100])[70:], streams.SAME)


def test_latents_end_where_decode_reads_them(v3):
    cache = v3.cache()
    table = cache.new_table()
    with streams.opened(v3, num_devices=2, cache=cache) as pipeline:
        streams.logits(v3, pipeline, [70], table=table)
    rest, _ = parity.run(streams.resident_program(v3, cache), table, v3.ids[70:], [1] * 5 + [25], start=70)
    parity.assert_near(rest, streams.resident(v3, [100])[70:], streams.SAME)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_only_the_last_token_goes_through_the_last_layer(v3, num_devices):
    cache = v3.cache()
    table = parity.reserved(cache.new_table(), 100)
    with streams.opened(v3, num_devices=num_devices, cache=cache) as pipeline:
        found = pipeline.forward(v3.ids, [parity.Segment(table, 0, 100)])
        chosen = pipeline.last_experts
    parity.assert_near(found, streams.resident(v3, [100])[-1:], streams.SAME)
    assert (chosen[:-1] >= 0).all()
    assert (chosen[-1, :-1] == -1).all() and (chosen[-1, -1] >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes_agree(tmp_path, seed):
    case = parity.open_case(streams.make_checkpoint(tmp_path / "model", seed, **parity.random_shape(seed)), seed)
    truth = streams.resident(case, [100])
    for num_devices in (1, 2, 3):
        with streams.opened(case, num_devices=num_devices, from_files=num_devices == 2) as pipeline:
            parity.assert_near(streams.logits(case, pipeline, [60, 1, 39]), truth, streams.SAME)

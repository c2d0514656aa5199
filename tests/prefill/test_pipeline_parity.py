"""Prompts that are streamed say what resident ones say: any ring, any group, any number of devices, any chunks."""

import parity_of_streams as streams
import pytest
from tiny import SHAPES


@pytest.fixture(params=SHAPES)
def case(request, tmp_path_factory):
    return streams.parity.case_of(request.param, tmp_path_factory)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_logits_are_those_of_the_resident_path(case, num_devices):
    truth = streams.resident(case, [100])
    with streams.opened(case, num_devices=num_devices) as pipeline:
        streams.parity.assert_near(streams.logits(case, pipeline, [100]), truth, streams.SAME)
        assert pipeline.free_slots == (4,) * num_devices

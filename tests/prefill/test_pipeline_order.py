"""What runs beside what: loads ahead of the layer that is computed, one pass over the bytes, and spans that say so."""

import threading

import parity_of_streams as streams
import pytest

from localmoe.devices.host import HostDevice
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.prefill.pipeline import Shape, overlap
from localmoe.prefill.ring import balanced, plan_groups

parity = streams.parity
PATIENCE_S = 10  # a test that waits longer has failed


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return parity.case_of("two-shared", tmp_path_factory)


class Watched:
    """A source that tells when a layer's first read begins."""

    def __init__(self, source, num_layers):
        self._source = source
        self.begun = [threading.Event() for _ in range(num_layers)]

    def experts(self, layer):
        return self._source.experts(layer)

    def resting(self, layer, first, count):
        return self._source.resting(layer, first, count)

    def blobs(self, layer, first, count):
        return None

    def views(self, layer, first, count, slot):
        return self._source.views(layer, first, count, slot)

    def steps(self, layer, first, count, slot):
        return [_WatchedStep(step, self.begun[layer]) for step in self._source.steps(layer, first, count, slot)]


class _WatchedStep:
    def __init__(self, step, begun):
        self._step, self._begun = step, begun
        self.nbytes, self.buffer_bytes, self.in_place = step.nbytes, step.buffer_bytes, step.in_place

    def fetch(self, buffer):
        self._begun.set()
        self._step.fetch(buffer)

    def place(self, buffer):
        self._step.place(buffer)


@pytest.mark.parametrize("num_slots", [2, 8])
def test_the_next_layer_is_in_flight_while_one_computes(case, num_slots):
    """A layer's last group is not computed before a group of the next layer is on its way."""
    source = Watched(streams.memory_source(case), case.config.num_moe_layers)
    with streams.opened(case, shape=Shape(4, num_slots), source=source) as pipeline:
        lane = pipeline._lanes[0]
        run_group, waited = lane.mixtures.run_group, []

        def late(stop, group):
            if stop.layer + 1 < len(source.begun) and group.first + group.count == case.config.num_experts:
                waited.append(source.begun[stop.layer + 1].wait(PATIENCE_S))
            run_group(stop, group)

        lane.mixtures.run_group = late
        found = streams.logits(case, pipeline, [100])
        spans = pipeline.spans
    assert waited == [True] * (case.config.num_moe_layers - 1)
    assert overlap(spans, 0) >= 1
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)


def test_a_large_ring_runs_ahead_before_anything_is_computed(case):
    source = Watched(streams.memory_source(case), case.config.num_moe_layers)
    with streams.opened(case, shape=Shape(4, 8), source=source) as pipeline:
        program = pipeline._lanes[0].program
        run = program.run

        def late(first, end, group=None):
            if first == 0:
                assert source.begun[1].wait(PATIENCE_S), "nothing of layer 1 while the first attention was computed"
            run(first, end, group)

        program.run = late
        streams.logits(case, pipeline, [100])


@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("num_slots", [1, 2, 8])
def test_every_expert_is_read_once(case, num_devices, num_slots):
    tensors = streams.Checkpoint.open(case.folder).tensors
    one_pass = sum(t.nbytes for name, t in tensors.items() if ".mlp.experts." in name)
    shape = Shape(3, num_slots)
    with streams.opened(case, num_devices=num_devices, shape=shape, from_files=True) as pipeline:
        for _ in range(2):
            streams.logits(case, pipeline, [100])
            assert sum(pipeline.loaded_bytes) == one_pass
            assert max(pipeline.loaded_bytes) - min(pipeline.loaded_bytes) <= one_pass / case.config.num_experts
        loads = [s for s in pipeline.spans if s.stage == "load"]
    assert len({(s.device, s.group) for s in loads}) == len(loads)


@pytest.mark.parametrize("num_slots", [1, 2, 8])
def test_of_the_last_layer_only_what_the_last_token_chose_is_read(case, num_slots):
    tensors = streams.Checkpoint.open(case.folder).tensors
    last = f".{case.config.num_layers - 1}.mlp.experts."
    before = sum(t.nbytes for name, t in tensors.items() if ".mlp.experts." in name and last not in name)
    each = sum(t.nbytes for name, t in tensors.items() if last in name) // case.config.num_experts
    with streams.opened(case, shape=Shape(3, num_slots), from_files=True) as pipeline:
        table = parity.reserved(pipeline._cache.new_table(), 100)
        found = pipeline.forward(case.ids, [parity.Segment(table, 0, 100)])
        assert pipeline.loaded_bytes == (before + case.config.top_k * each,)
        pipeline.transfer()
        assert pipeline.loaded_bytes == (before + case.config.top_k * each,)
    parity.assert_near(found, streams.resident(case, [100])[-1:], streams.SAME)


def test_spans_tell_every_stage(case):
    with streams.opened(case, num_devices=2) as pipeline:
        streams.logits(case, pipeline, [100])
        spans = pipeline.spans
    assert {s.stage for s in spans} == {"load", "attention", "experts", "exchange"}
    assert {s.device for s in spans} == {"host0", "host1"}
    assert all(s.start_s <= s.end_s for s in spans)
    for device in ("host0", "host1"):
        loaded = {s.group: s.end_s for s in spans if s.stage == "load" and s.device == device}
        computed = [s for s in spans if s.stage == "experts" and s.device == device]
        assert [s.group for s in computed] == sorted(loaded)
        assert all(loaded[s.group] <= s.start_s for s in computed)


def test_a_ring_larger_than_its_device_is_refused(case):
    device = HostDevice(100_000)
    refused = pytest.raises(OutOfMemoryError, match=r"device host has 0\.1 MB left")
    with refused, streams.opened(case, shape=Shape(16, 8), devices=[device]):
        pass
    assert device.free_bytes == 100_000
    device.close()


def test_a_pipeline_needs_slots(case):
    with pytest.raises(UsageError), streams.opened(case, shape=Shape(2, 0)):
        pass


def test_slots_go_back_to_the_device(case):
    device = HostDevice(64 << 20)
    with streams.opened(case, devices=[device]):
        assert device.free_bytes < 64 << 20
    assert device.free_bytes == 64 << 20
    device.close()


def test_groups_cover_every_share_in_order():
    shares = [range(0, 5), range(2, 2), range(3, 10)]
    groups = plan_groups(shares, 3)
    assert [(g.layer, g.first, g.count) for g in groups] == [(0, 0, 3), (0, 3, 2), (2, 3, 3), (2, 6, 3), (2, 9, 1)]
    assert [g.is_first for g in groups] == [True, False, True, False, False]
    assert [g.number for g in groups] == list(range(5))


@pytest.mark.parametrize("num_devices", [1, 2, 3, 5, 7])
def test_shares_are_balanced(num_devices):
    shares = balanced([16, 3, 16, 5, 1], num_devices)
    for layer, count in enumerate([16, 3, 16, 5, 1]):
        assert [e for share in shares for e in share[layer]] == list(range(count))
    totals = [sum(len(r) for r in share) for share in shares]
    assert max(totals) - min(totals) <= 1

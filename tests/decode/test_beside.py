"""Steps on a device and the CPU together say what the resident path says, whoever computes which experts."""

import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "prefill"))
import parity_of_streams as streams

from localmoe.decode.beside import Beside
from localmoe.decode.hot import HotExperts, count_choices, hottest
from localmoe.devices.host import HostDevice
from localmoe.devices.turns import Turns
from localmoe.errors import OutOfMemoryError
from localmoe.model.programs import HostPrograms

parity = streams.parity
NAMES = ("v3", "moonlight", "no-shared", "odd-dims")


class Always:
    """An alternation that never asks."""

    def __init__(self, pays=True):
        self._pays = pays
        self.times = []

    def add(self, num_tokens, times):
        self.times.append((num_tokens, times))

    def pays(self, num_tokens):
        return self._pays


@pytest.fixture(params=NAMES)
def case(request, tmp_path_factory):
    return parity.case_of(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


def layers_of(case):
    return [layer.moe.experts for layer in case.model.layers if layer.moe]


def some_hot(case, seed, most=5):
    """Any experts of each layer, in one layer none."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, most + 1, case.config.num_moe_layers)
    return [random.permutation(case.config.num_experts)[:count].tolist() for count in counts]


@contextmanager
def opened(case, *, cache=None, hot=None, alternation=None, device=None, max_tokens=parity.NUM_TOKENS, turns=None):
    cache = cache or case.cache()
    device = device or HostDevice(64 << 20)
    programs = HostPrograms(case.model, cache, streams.POOL)
    with ExitStack() as stack:
        stack.callback(device.close)
        experts = None
        if hot is not None:
            experts = HotExperts(device, layers_of(case), hot)
            stack.callback(experts.close)
        program = Beside(
            case.config,
            device,
            programs,
            programs,
            max_tokens,
            hot=experts,
            alternation=alternation,
            turns=turns(device) if turns else None,
        )
        stack.callback(program.close)
        yield program


def sessions(case, cache, starts):
    """A table for each, filled up to there by the resident path."""
    tables = []
    for start in starts:
        table = cache.new_table()
        parity.run(streams.resident_program(case, cache), table, case.ids[:start], [start] if start else [])
        tables.append(table)
    return tables


def slow(kind, seconds):
    """For HostDevice's probe: whatever it begins of that kind takes so much longer."""
    return lambda begins: time.sleep(seconds) if begins == kind else None


@pytest.mark.parametrize("hot", [None, 0, 1])
def test_a_prompt_and_then_steps_say_what_the_resident_path_says(case, hot):
    cache = case.cache()
    with opened(case, cache=cache, hot=None if hot is None else some_hot(case, hot)) as program:
        found, chosen = parity.run(program, cache.new_table(), case.ids, [60] + [1] * 9 + [3, 28])
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)
    assert chosen.shape == (case.config.num_moe_layers, 100, case.config.top_k) and (chosen >= 0).all()


@pytest.mark.parametrize("alternation", [None, Always()])
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("starts", [[70], [63, 64], [5, 99, 40], [0, 12, 63, 90]])
def test_sessions_get_in_a_batch_what_they_get_alone(case, starts, hot, alternation):
    """One token of each session, in one batch or in two that alternate."""
    cache = case.cache()
    tables = sessions(case, cache, starts)
    segments = [
        parity.Segment(parity.reserved(table, start + 1), start, 1) for table, start in zip(tables, starts, strict=True)
    ]
    with opened(case, cache=cache, hot=some_hot(case, 2) if hot else None, alternation=alternation) as program:
        found = program.forward(case.ids[starts], segments)
        chosen, cuts = program.last_experts, program._cuts(segments)
    assert len(cuts) == (2 if alternation and len(starts) > 1 else 1)
    resident = streams.resident_program(case, cache)
    for cut, _ in cuts:  # batches of the same size: the same kernels
        parity.assert_near(found[cut], resident.forward(case.ids[starts][cut], segments[cut]), 1e-5)
        assert (np.sort(chosen[:, cut]) == np.sort(resident.last_experts)).all()
    parity.assert_near(found, streams.resident(case, [100])[starts], streams.SAME)


@pytest.mark.parametrize("check", [check for check in parity.EVERY_WAY if check is not parity.check_bf16_cache])
@pytest.mark.parametrize("alternation", [None, Always()])
def test_every_way_of_running_agrees(v3, check, alternation):
    def make_program(model, cache, max_tokens):
        device = HostDevice(64 << 20)
        programs = HostPrograms(model, cache, streams.POOL)
        hot = HotExperts(device, layers_of(v3), some_hot(v3, 3))
        return Beside(v3.config, device, programs, programs, max_tokens, hot=hot, alternation=alternation)

    check(v3, make_program)


def test_experts_on_several_nodes(v3):
    case = parity.open_case(v3.folder, nodes=range(3))
    cache = case.cache()
    with opened(case, cache=cache, hot=some_hot(case, 4)) as program:
        found, _ = parity.run(program, cache.new_table(), case.ids, [60, 1, 39])
    parity.assert_near(found, streams.resident(v3, [100]), streams.SAME)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_hottest_experts_may_be_none_or_all(v3, share):
    num = v3.config.num_experts * v3.config.num_moe_layers
    cache = v3.cache()
    with opened(v3, cache=cache) as program:
        _, chosen = parity.run(program, cache.new_table(), v3.ids, [100])
    counts = count_choices(chosen, v3.config.num_experts)
    hot = hottest(counts, int(share * num))
    assert sum(map(len, hot)) == min(int(share * num), int((counts > 0).sum()))
    with opened(v3, cache=cache, hot=hot) as program:
        found, again = parity.run(program, cache.new_table(), v3.ids, [50] + [1] * 5 + [45])
    parity.assert_near(found, streams.resident(v3, [100]), streams.SAME)
    assert (again == chosen).all()


def test_hot_experts_are_those_chosen_most():
    chosen = np.asarray([[[0, 1], [1, 2], [1, -1]], [[3, 0], [3, 1], [3, 2]]], np.int32)
    counts = count_choices(chosen, 4)
    assert counts.tolist() == [[1, 3, 1, 0], [1, 1, 1, 3]]
    assert hottest(counts, 2) == [[1], [3]]
    assert hottest(counts, 3) == [[0, 1], [3]]
    assert hottest(counts, 100) == [[0, 1, 2], [0, 1, 2, 3]]


def test_the_cpu_does_not_read_hot_experts(v3):
    """What the store holds of them does not matter any more."""
    cache = v3.cache()
    hot = [list(range(v3.config.num_experts))[::2]] * v3.config.num_moe_layers
    with opened(v3, cache=cache, hot=hot) as program:
        kept = [experts.parts[0].blob.copy() for experts in layers_of(v3)]
        try:
            for experts in layers_of(v3):
                experts.parts[0].blob[::2] = 0x7E  # huge weights
            found, _ = parity.run(program, cache.new_table(), v3.ids[:20], [20])
        finally:
            for experts, blob in zip(layers_of(v3), kept, strict=True):
                experts.parts[0].blob[:] = blob
    parity.assert_near(found, streams.resident(v3, [100])[:20], streams.SAME)


def test_shared_experts_are_computed_while_the_cpu_computes_routed_ones(v3):
    cache = v3.cache()
    with opened(v3, cache=cache, device=HostDevice(64 << 20, probe=slow("launch", 1e-2))) as program:
        parity.run(program, cache.new_table(), v3.ids, [100])
        spans = program.recorded.all()
    assert {(s.device, s.stage) for s in spans} == {("host", "attention"), ("host", "shared"), ("cpu", "experts")}
    for layer in range(v3.config.num_moe_layers):
        shared, routed, attended = (
            next(s for s in spans if s.stage == stage and s.layer == layer)
            for stage in ("shared", "experts", "attention")
        )
        assert attended.end_s <= routed.start_s  # rows are there
        assert shared.start_s < routed.end_s and routed.start_s < shared.end_s


def test_two_that_alternate_overlap(v3):
    """One half is attended to while the other half's experts are computed."""
    cache = v3.cache()
    starts = [20, 40, 60, 80]
    segments = [
        parity.Segment(parity.reserved(table, start + 1), start, 1)
        for table, start in zip(sessions(v3, cache, starts), starts, strict=True)
    ]
    device = HostDevice(64 << 20, probe=slow("launch", 2e-3))
    with opened(v3, cache=cache, alternation=Always(), device=device) as program:
        program.forward(v3.ids[starts], segments)
        spans = program.recorded.all()
    attended = [s for s in spans if s.stage == "attention"]
    routed = [s for s in spans if s.stage == "experts"]
    assert len(attended) == len(routed) == 2 * v3.config.num_moe_layers
    assert any(a.start_s < r.end_s and r.start_s < a.end_s for a in attended for r in routed)


def test_a_program_learns_what_a_layer_takes(v3):
    alternation = Always(pays=False)
    cache = v3.cache()
    with opened(v3, cache=cache, alternation=alternation) as program:
        parity.run(program, cache.new_table(), v3.ids[:9], [7, 1, 1])
    assert [num for num, _ in alternation.times] == [7, 1, 1]
    assert all(times.device_s > 0 and times.cpu_s > 0 for _, times in alternation.times)


def test_a_model_of_dense_layers_only_needs_no_cpu(tmp_path):
    case = parity.open_case(streams.make_checkpoint(tmp_path / "model", 0, first_k_dense_replace=3))
    cache = case.cache()
    with opened(case, cache=cache) as program:
        found, chosen = parity.run(program, cache.new_table(), case.ids, [60, 1, 39])
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)
    assert chosen is None


def test_memory_that_cannot_be_locked_is_said(v3):
    device = HostDevice(64 << 20)

    def register(memory, *, pinned, portable):
        raise OSError("Cannot allocate memory")

    device.register = register
    with (
        pytest.raises(OutOfMemoryError, match="the system locks no more: Cannot allocate") as told,
        opened(v3, device=device),
    ):
        pass
    assert "ulimit -l" in told.value.hint
    assert device.free_bytes == device.capacity


class NotedTurns(Turns):
    """What was issued between a request and its end."""

    def __init__(self, device):
        super().__init__(device)
        self.noted = []

    def take(self, stream):
        super().take(stream)
        self.noted.append("take")

    def give(self, stream):
        self.noted.append("give")
        super().give(stream)


@pytest.mark.parametrize("hot", [False, True])
def test_a_step_asks_for_the_device_whenever_it_computes_there(v3, hot):
    """Once a layer and for the head, and for hot experts; while the CPU computes, a prompt may have the device."""
    cache, made = v3.cache(), []

    def turns(device):
        made.append(NotedTurns(device))
        return made[0]

    experts = [[0, 2]] * v3.config.num_moe_layers if hot else None
    with opened(v3, cache=cache, turns=turns, hot=experts) as program:
        parity.run(program, cache.new_table(), v3.ids[:10], [9, 1])
    per_step = v3.config.num_moe_layers * (2 if hot else 1) + 1
    assert made[0].noted == ["take", "give"] * (2 * per_step)
    assert made[0].asked.value == 2 * per_step and made[0].wait(2 * per_step, 0.0)


def test_a_prompt_waits_for_a_stream_that_has_failed_until_that_is_settled():
    device = HostDevice(1 << 20)
    turns, stream, done = Turns(device), device.new_stream("steps"), device.new_event()
    turns.take(stream)
    stream.launch(lambda: 1 / 0)
    turns.give(stream)
    stream.record(done)
    with pytest.raises(ZeroDivisionError):
        done.wait(10.0)
    assert turns.asked.value == 1 and not turns.wait(1, 0.0)
    stream.reset()
    turns.settle()
    assert turns.wait(1, 0.0)
    device.close()


def test_a_step_that_fails_leaves_no_request(v3):
    cache, made = v3.cache(), []

    def turns(device):
        made.append(Turns(device))
        return made[0]

    def fail(kind):
        if kind == "peer":
            raise RuntimeError("the copy failed")

    device = HostDevice(64 << 20, probe=fail)
    segment = parity.Segment(parity.reserved(cache.new_table(), 4), 0, 4)
    with opened(v3, cache=cache, turns=turns, device=device) as program, pytest.raises(RuntimeError):
        program.forward(v3.ids[:4], [segment])
    assert made[0].asked.value > 0 and made[0].wait(made[0].asked.value, 0.0)

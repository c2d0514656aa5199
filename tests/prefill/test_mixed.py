"""Prompts whose experts are shared by a device and the CPU say what resident ones say, whoever has which."""

import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import parity_of_streams as streams
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pipeline_faults import Chaos, InjectedError

from localmoe import _native as native
from localmoe.devices.host import HostDevice
from localmoe.errors import CancelledError, DeviceLostError, LocalmoeError, UsageError
from localmoe.model.programs import HostPrograms
from localmoe.prefill.mixed import Mixed
from localmoe.prefill.split import SplitRates, split

parity = streams.parity
NAMES = ("v3", "moonlight", "no-shared", "odd-dims")
RATES = SplitRates(move_s=2e-3, device_expert_s=1e-5, device_token_s=1e-6, cpu_expert_s=2e-4, cpu_token_s=2e-4)
WITHIN_S = 0.1


def all_to_the_device(counts):
    return np.flatnonzero(counts)


def none_to_the_device(counts):
    return []


class AnySplit:
    """Some experts in any order, those without tokens among them."""

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        self.told = []

    def __call__(self, counts):
        self.told.append(counts)
        return self._random.permutation(len(counts))[: self._random.integers(len(counts) + 1)]


def by_rates(counts):
    return split(counts, RATES).device


@pytest.fixture(params=NAMES)
def case(request, tmp_path_factory):
    return parity.case_of(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


@contextmanager
def opened(case, choose=by_rates, *, cache=None, device=None, **shape):
    cache = cache or case.cache()
    device = device or HostDevice(64 << 20)
    programs = HostPrograms(case.model, cache, streams.POOL)
    shape = {"num_slots": 3, **shape}
    with ExitStack() as stack:
        stack.callback(device.close)
        program = Mixed(case.config, device, programs, programs, parity.NUM_TOKENS, choose, **shape)
        stack.callback(program.close)
        yield program


@pytest.mark.parametrize("choose", [all_to_the_device, none_to_the_device, AnySplit(0), by_rates, None])
def test_logits_are_those_of_the_resident_path(case, choose):
    cache = case.cache()
    with opened(case, choose, cache=cache) as program:
        found, chosen = parity.run(program, cache.new_table(), case.ids, [60, 1, 39])
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)
    assert chosen.shape == (case.config.num_moe_layers, 100, case.config.top_k) and (chosen >= 0).all()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 1 << 30),
    num_slots=st.integers(1, 6),
    num_tiles=st.integers(1, 5),
    sizes=st.sampled_from([[100], [1, 99], [60, 1, 7, 32], [8, 9, 83]]),
)
def test_any_split_agrees(tmp_path_factory, name, seed, num_slots, num_tiles, sizes):
    case = parity.case_of(name, tmp_path_factory)
    cache, choose = case.cache(), AnySplit(seed)
    with opened(case, choose, cache=cache, num_slots=num_slots, num_tiles=num_tiles) as program:
        found, _ = parity.run(program, cache.new_table(), case.ids, sizes)
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)
    runs = [counts.sum() for counts in choose.told]
    assert runs == [size * case.config.top_k for size in sizes for _ in range(case.config.num_moe_layers)]


@pytest.mark.parametrize("check", [check for check in parity.EVERY_WAY if check is not parity.check_bf16_cache])
def test_every_way_of_running_agrees(v3, check):
    def make_program(model, cache, max_tokens):
        programs = HostPrograms(model, cache, streams.POOL)
        return Mixed(v3.config, HostDevice(64 << 20), programs, programs, max_tokens, AnySplit(1))

    check(v3, make_program)


def test_experts_on_several_nodes_are_moved_part_by_part(v3):
    case = parity.open_case(v3.folder, nodes=range(3))
    cache = case.cache()
    with opened(case, AnySplit(2), cache=cache) as program:
        found, _ = parity.run(program, cache.new_table(), case.ids, [60, 40])
    parity.assert_near(found, streams.resident(v3, [100]), streams.SAME)


def test_only_what_is_chosen_for_the_device_is_moved(v3):
    cache = v3.cache()
    with opened(v3, none_to_the_device, cache=cache) as program:
        parity.run(program, cache.new_table(), v3.ids, [100])
        assert program.moved_bytes == 0
    with opened(v3, lambda counts: [3, 5], cache=cache) as program:
        parity.run(program, cache.new_table(), v3.ids, [100])
        expert_bytes = streams.memory_source(v3).experts(0).parts[0].blob.shape[1]
        assert program.moved_bytes == 2 * v3.config.num_moe_layers * expert_bytes


def test_the_device_and_the_cpu_compute_experts_at_once(v3):
    device = HostDevice(64 << 20, probe=lambda kind: time.sleep(5e-3) if kind == "launch" else None)
    cache = v3.cache()
    with opened(v3, lambda counts: [3, 5], cache=cache, device=device) as program:
        parity.run(program, cache.new_table(), v3.ids, [100])
        spans = program.recorded.all()
    for layer in range(v3.config.num_moe_layers):
        there, here = (
            next(s for s in spans if (s.device, s.stage, s.layer) == (device, "experts", layer))
            for device in ("host", "cpu")
        )
        assert here.start_s < there.end_s
        assert {s.stage for s in spans if s.layer == layer} == {"attention", "shared", "experts", "exchange"}


def test_a_slot_is_needed(v3):
    with pytest.raises(UsageError, match="need a slot"), opened(v3, num_slots=0):
        pass


def run_schedule(case, seed, num_slots, fault, at):
    """One run under chaos, and one after it in peace."""
    chaos = Chaos(seed, fault, at)
    device = HostDevice(64 << 20, probe=chaos.probe(0))
    chaos.devices = [device]
    cache = case.cache()
    segment = parity.Segment(parity.reserved(cache.new_table(), 100), 0, 100)
    truth = streams.resident(case, [100])
    errors = {"raise": InjectedError, "lose": DeviceLostError, "cancel": CancelledError}
    with opened(case, AnySplit(seed), cache=cache, num_slots=num_slots, device=device) as program:
        step = partial(program.forward, case.ids, [segment], all_logits=True)
        try:
            found = step(cancel=chaos.flag)
            assert not chaos.happened or fault == "cancel", "a fault was swallowed"
            parity.assert_near(found, truth, streams.SAME)
        except LocalmoeError as error:
            assert chaos.happened and isinstance(error, errors[fault]), repr(error)
        chaos.calm()
        if fault == "lose" and chaos.happened:
            with pytest.raises(DeviceLostError, match="pulled it out"):
                step()
        else:
            parity.assert_near(step(), truth, streams.SAME)
    assert device.free_bytes == device.capacity


schedules = given(
    seed=st.integers(0, 1 << 30),
    num_slots=st.integers(1, 5),
    fault=st.sampled_from(["none", "raise", "lose", "cancel"]),
    at=st.integers(1, 80),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@schedules
def test_any_schedule_ends_right(v3, seed, num_slots, fault, at):
    run_schedule(v3, seed, num_slots, fault, at)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=5_000, deadline=None)
@schedules
def test_five_thousand_schedules_end_right(v3, seed, num_slots, fault, at):
    run_schedule(v3, seed, num_slots, fault, at)


def test_a_cancel_does_not_wait_for_a_copy_that_hangs(v3):
    hang, reached, flag, set_s = threading.Event(), threading.Event(), native.Flag(), []

    def probe(kind):
        if kind == "copy":
            reached.set()
            hang.wait()

    def cancel():
        reached.wait()
        set_s.append(time.perf_counter())
        flag.set()

    cache = v3.cache()
    segment = parity.Segment(parity.reserved(cache.new_table(), 100), 0, 100)
    with opened(v3, all_to_the_device, cache=cache, device=HostDevice(64 << 20, probe=probe)) as program:
        threading.Thread(target=cancel).start()
        with pytest.raises(CancelledError):
            program.forward(v3.ids, [segment], cancel=flag)
        assert time.perf_counter() - set_s[0] < WITHIN_S
        hang.set()
        found = program.forward(v3.ids, [segment], all_logits=True)
    parity.assert_near(found, streams.resident(v3, [100]), streams.SAME)

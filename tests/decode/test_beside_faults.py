"""Steps beside a device that end early: each with its sentence, and everything free for the next one."""

import threading
import time

import pytest
import test_beside
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pipeline_faults import Chaos, InjectedError

from localmoe import _native as native
from localmoe.devices.host import HostDevice
from localmoe.errors import CancelledError, DeviceLostError, LocalmoeError

streams = test_beside.streams
parity = streams.parity
STARTS = [20, 64, 90]
WITHIN_S = 0.1


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


class Batch:
    """One token of each of three sessions, ready to be run again and again."""

    def __init__(self, case):
        self.cache = case.cache()
        tables = test_beside.sessions(case, self.cache, STARTS)
        self.segments = [
            parity.Segment(parity.reserved(table, start + 1), start, 1)
            for table, start in zip(tables, STARTS, strict=True)
        ]
        self.ids = case.ids[STARTS]
        self.truth = streams.resident(case, [100])[STARTS]

    def step(self, program, flag=None):
        return program.forward(self.ids, self.segments, cancel=flag)


@pytest.fixture(scope="module")
def batch(v3):
    return Batch(v3)


def run_schedule(case, batch, seed, alternates, hot, fault, at):
    """One step under chaos, and one after it in peace."""
    chaos = Chaos(seed, fault, at)
    device = HostDevice(64 << 20, probe=chaos.probe(0))
    chaos.devices = [device]
    errors = {"raise": InjectedError, "lose": DeviceLostError, "cancel": CancelledError}
    alternation = test_beside.Always(alternates)
    ids = test_beside.some_hot(case, seed) if hot else None
    try:
        opened = test_beside.opened(case, cache=batch.cache, hot=ids, alternation=alternation, device=device)
        with opened as program:
            try:
                found = batch.step(program, chaos.flag)
                assert not chaos.happened or fault == "cancel", "a fault was swallowed"
                parity.assert_near(found, batch.truth, streams.SAME)
            except LocalmoeError as error:
                assert chaos.happened and isinstance(error, errors[fault]), repr(error)
            chaos.calm()
            if fault == "lose" and chaos.happened:
                with pytest.raises(DeviceLostError, match="pulled it out"):
                    batch.step(program)
            else:
                parity.assert_near(batch.step(program), batch.truth, streams.SAME)
    except LocalmoeError as error:  # while hot experts were uploaded
        assert hot and chaos.happened and isinstance(error, errors[fault]), repr(error)
    assert device.free_bytes == device.capacity


schedules = given(
    seed=st.integers(0, 1 << 30),
    alternates=st.booleans(),
    hot=st.booleans(),
    fault=st.sampled_from(["none", "raise", "lose", "cancel"]),
    at=st.integers(1, 60),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@schedules
def test_any_schedule_ends_right(v3, batch, seed, alternates, hot, fault, at):
    run_schedule(v3, batch, seed, alternates, hot, fault, at)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=5_000, deadline=None)
@schedules
def test_five_thousand_schedules_end_right(v3, batch, seed, alternates, hot, fault, at):
    run_schedule(v3, batch, seed, alternates, hot, fault, at)


@pytest.mark.parametrize("alternates", [False, True])
def test_a_cancel_ends_a_step_at_once(v3, batch, alternates):
    """Whatever runs just then: the device is slow enough that it is always in the middle."""
    device = HostDevice(64 << 20, probe=test_beside.slow("launch", 0.02))
    alternation = test_beside.Always(alternates)
    with test_beside.opened(v3, cache=batch.cache, alternation=alternation, device=device) as program:
        for after_s in (0.0, 0.01, 0.05):
            flag, set_s = native.Flag(), []

            def cancel(flag=flag, set_s=set_s):
                set_s.append(time.perf_counter())
                flag.set()

            threading.Timer(after_s, cancel).start()
            with pytest.raises(CancelledError):
                batch.step(program, flag)
            assert time.perf_counter() - set_s[0] < WITHIN_S
        parity.assert_near(batch.step(program), batch.truth, streams.SAME)


def test_a_device_that_is_lost_while_the_cpu_computes_ends_the_step(v3, batch):
    reached = threading.Event()
    device = HostDevice(64 << 20, probe=lambda kind: reached.set() if kind == "peer" else None)
    with test_beside.opened(v3, cache=batch.cache, device=device) as program:
        threading.Thread(target=lambda: (reached.wait(), device.lose("no answer"))).start()
        with pytest.raises(DeviceLostError, match="device host was lost: no answer"):
            for _ in range(100):
                batch.step(program)


def test_an_op_that_fails_on_the_cpu_ends_the_step(v3, batch):
    """Not only the device may fail: it is not left waiting for a sum that never comes."""
    with test_beside.opened(v3, cache=batch.cache) as program:
        own = program._batches[0]
        turns, own._turns = own._turns, own._turns[:1]
        own._turns = [[native.Turn(0, 10_000, None, None, None)], *turns[1:]]
        with pytest.raises(ValueError, match="no such ops"):
            batch.step(program)
        own._turns = turns
        parity.assert_near(batch.step(program), batch.truth, streams.SAME)

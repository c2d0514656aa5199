"""Runs that end early: each with its sentence, and everything free for the next one."""

import random
import threading
import time

import numpy as np
import parity_of_streams as streams
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import SHAPES, make_checkpoint

from localmoe import _native as native
from localmoe.devices.host import HostDevice
from localmoe.errors import CancelledError, CheckpointError, DeviceLostError, LocalmoeError
from localmoe.prefill.pipeline import Shape

parity = streams.parity


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


@pytest.fixture(scope="module")
def truth(case):
    """The logits of a prompt of 100 tokens."""
    return streams.resident(case, [100])


class InjectedError(LocalmoeError):
    """A fault of a test."""


class Chaos:
    """Delays, and one fault at most, at calls that a seed decides."""

    def __init__(self, seed, fault, at):
        self._random = random.Random(seed)
        self._fault, self._at, self._calls = fault, at, 0
        self._lock = threading.Lock()
        self.devices = []
        self.flag = native.Flag()
        self.happened = False

    def probe(self, n):
        def begins(kind):
            with self._lock:
                self._calls += 1
                now = self._calls == self._at
                pause_s = self._random.choice([0, 0, 0, 1e-4, 1e-3])
            if pause_s:
                time.sleep(pause_s)
            if now:
                self._happens(n)

        return begins

    def calm(self):
        """Nothing happens any more."""
        self._at = 0

    def _happens(self, n):
        if self._fault == "raise":
            self.happened = True
            raise InjectedError("a fault of a test.")
        if self._fault == "lose":
            self.happened = True
            self.devices[n].lose("a test pulled it out")
        if self._fault == "cancel":
            self.happened = True
            self.flag.set()


def run_schedule(case, truth, seed, num_devices, shape, fault, at):
    """One run under chaos, and one after it in peace."""
    chaos = Chaos(seed, fault, at)
    chaos.devices = [HostDevice(64 << 20, name=f"host{n}", probe=chaos.probe(n)) for n in range(num_devices)]
    cache = case.cache(num_pages=4)
    table = parity.reserved(cache.new_table(), 100)
    errors = {"raise": InjectedError, "lose": DeviceLostError, "cancel": CancelledError}
    try:
        with streams.opened(case, devices=chaos.devices, shape=shape, cache=cache) as pipeline:
            full = pipeline.free_slots
            segment = parity.Segment(table, 0, 100)
            try:
                found = pipeline.forward(case.ids, [segment], cancel=chaos.flag, all_logits=True)
                assert not chaos.happened or fault == "cancel", "a fault was swallowed"
                parity.assert_near(found, truth, streams.SAME)
            except LocalmoeError as error:
                assert chaos.happened and isinstance(error, errors[fault]), repr(error)
            assert pipeline.free_slots == full
            chaos.calm()
            if fault == "lose" and chaos.happened:
                with pytest.raises(DeviceLostError, match="pulled it out"):
                    pipeline.forward(case.ids, [segment])
                assert pipeline.free_slots == full
            else:
                again = pipeline.forward(case.ids, [segment], all_logits=True)
                parity.assert_near(again, truth, streams.SAME)
    finally:
        for device in chaos.devices:
            device.close()


schedules = given(
    seed=st.integers(0, 1 << 30),
    num_devices=st.integers(1, 3),
    shape=st.builds(Shape, st.integers(1, 8), st.integers(1, 8)),
    fault=st.sampled_from(["none", "raise", "lose", "cancel"]),
    at=st.integers(1, 120),
)


@settings(max_examples=120, deadline=None, derandomize=True)
@schedules
def test_any_schedule_ends_right(case, truth, seed, num_devices, shape, fault, at):
    run_schedule(case, truth, seed, num_devices, shape, fault, at)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, deadline=None)
@schedules
def test_ten_thousand_schedules_end_right(case, truth, seed, num_devices, shape, fault, at):
    run_schedule(case, truth, seed, num_devices, shape, fault, at)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_cancel_does_not_wait_for_a_read_that_hangs(case, truth, num_devices):
    hang = threading.Event()
    reached = threading.Event()
    flag = native.Flag()

    def probe(kind):
        if kind == "copy":
            reached.set()
            hang.wait()

    cache = case.cache()
    table = parity.reserved(cache.new_table(), 100)
    devices = [HostDevice(64 << 20, name=f"host{n}", probe=probe) for n in range(num_devices)]
    with streams.opened(case, devices=devices, cache=cache) as pipeline:
        full = pipeline.free_slots
        threading.Thread(target=lambda: (reached.wait(), flag.set())).start()
        with pytest.raises(CancelledError):
            pipeline.forward(case.ids, [parity.Segment(table, 0, 100)], cancel=flag)
        assert pipeline.free_slots == full
        hang.set()  # the disk answers at last: what it brings goes nowhere
        flag.clear()
        found = pipeline.forward(case.ids, [parity.Segment(table, 0, 100)], cancel=flag, all_logits=True)
    parity.assert_near(found, truth, streams.SAME)
    for device in devices:
        device.close()


def test_a_lost_device_ends_a_run_that_it_hangs(case):
    hang = threading.Event()

    def probe(kind):
        if kind == "copy":
            device.lose("no answer")
            hang.wait()

    device = HostDevice(64 << 20, probe=probe)
    with streams.opened(case, devices=[device]) as pipeline:
        with pytest.raises(DeviceLostError, match="device host was lost: no answer"):
            streams.logits(case, pipeline, [100])
        hang.set()
    device.close()


def test_a_bad_block_is_named(tmp_path):
    case = parity.open_case(make_checkpoint(tmp_path / "model", 0, **SHAPES["v3"]))
    with streams.opened(case, from_files=True) as pipeline:
        name = "model.layers.2.mlp.experts.7.up_proj.weight"
        tensor = streams.Checkpoint.open(case.folder).tensors[name]
        before = poke(tensor.file, tensor.start + 1000, b"\x7f")
        with pytest.raises(CheckpointError, match=f"{name} has the FP8 code 0x7F.* at byte {tensor.start + 1000:,}"):
            streams.logits(case, pipeline, [100])
        poke(tensor.file, tensor.start + 1000, before)
        found = streams.logits(case, pipeline, [100])
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)


def test_a_file_that_ends_early_is_named(tmp_path):
    case = parity.open_case(make_checkpoint(tmp_path / "model", 0, **SHAPES["v3"]))
    with streams.opened(case, from_files=True, num_devices=2) as pipeline:
        (file,) = case.folder.glob("*.safetensors")
        content = file.read_bytes()
        with file.open("r+b") as opened:
            opened.truncate(len(content) // 2)
        with pytest.raises(CheckpointError, match="ended at byte"):
            streams.logits(case, pipeline, [100])
        file.write_bytes(content)
        found = streams.logits(case, pipeline, [100])
    parity.assert_near(found, streams.resident(case, [100]), streams.SAME)


def test_a_flag_that_is_set_already_ends_a_run_at_once(case):
    flag = native.Flag()
    flag.set()
    cache = case.cache()
    table = parity.reserved(cache.new_table(), 100)
    slow = HostDevice(64 << 20, cap=1e5)
    with streams.opened(case, cache=cache, devices=[slow]) as pipeline, pytest.raises(CancelledError):
        pipeline.forward(case.ids, [parity.Segment(table, 0, 100)], cancel=flag)
    slow.close()


def poke(file, at, value):
    """Writes bytes in place; what was there before."""
    with file.open("r+b") as opened:
        opened.seek(at)
        before = opened.read(len(value))
        opened.seek(at)
        opened.write(value)
    return before


def test_rows_of_a_pass_are_finite(case):
    with streams.opened(case, num_devices=2) as pipeline:
        assert np.isfinite(streams.logits(case, pipeline, [100])).all()

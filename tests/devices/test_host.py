"""The host device: order, events, limits, and failures that stay where they belong."""

import threading

import numpy as np
import pytest

from localmoe.devices.copying import PIECE_BYTES
from localmoe.devices.host import HostDevice
from localmoe.errors import CancelledError, DeviceLostError, OutOfMemoryError

PATIENCE_S = 10
MIB = 1 << 20


@pytest.fixture
def device():
    with_all = HostDevice(64 * MIB)
    yield with_all
    with_all.close()


def reached(event):
    assert event.wait(PATIENCE_S), "never reached"
    return True


def recorded(device, stream):
    event = device.new_event()
    stream.record(event)
    return event


class Step:
    """Writes its number to the target; `gate` holds up its read."""

    buffer_bytes = 100
    in_place = False

    def __init__(self, target, value, gate=None):
        self.target, self.value, self.gate, self.nbytes = target, value, gate, len(target)

    def fetch(self, buffer):
        assert len(buffer) >= 100 and buffer.ctypes.data % 4096 == 0
        if self.gate:
            self.gate.wait(PATIENCE_S)

    def place(self, buffer):
        self.target[:] = self.value


class StepInPlace(Step):
    """Writes already while it reads."""

    in_place = True

    def __init__(self, target, value, gate, began):
        super().__init__(target, value, gate)
        self.began = began

    def fetch(self, buffer):
        self.began.set()
        super().fetch(buffer)
        self.target[:] = self.value


def test_a_reset_waits_for_reads_that_write_to_the_target(device):
    gate, began, over = threading.Event(), threading.Event(), threading.Event()
    stream, target = device.new_stream("s"), np.zeros(100, np.uint8)
    stream.copy_async(target, [StepInPlace(target, 1, gate, began), StepInPlace(target, 2, gate, began)])
    assert began.wait(PATIENCE_S)
    thread = threading.Thread(target=lambda: (stream.reset(), over.set()))
    thread.start()
    assert not over.wait(0.05)
    gate.set()
    assert over.wait(PATIENCE_S)
    thread.join()
    target[:] = 7
    stream.launch(lambda: None)
    assert reached(recorded(device, stream))
    assert (target == 7).all()


def test_a_read_in_place_that_fails_ends_the_copy(device):
    stream, target = device.new_stream("s"), np.zeros(100, np.uint8)
    step = StepInPlace(target, 1, None, threading.Event())
    step.place = lambda buffer: 1 / 0
    stream.copy_async(target, [step])
    with pytest.raises(ZeroDivisionError):
        reached(recorded(device, stream))


def test_work_is_done_in_order(device):
    stream, done = device.new_stream("s"), []
    for n in range(50):
        stream.launch(lambda n=n: done.append(n))
    assert reached(recorded(device, stream))
    assert done == list(range(50))


def test_an_event_is_not_reached_before_its_work(device):
    stream, gate = device.new_stream("s"), threading.Event()
    stream.launch(gate.wait)
    event = recorded(device, stream)
    assert not event.query() and not event.wait(0.01)
    gate.set()
    assert reached(event) and event.query()


def test_an_event_that_was_never_recorded_holds_nobody_up(device):
    assert device.new_event().query()


def test_a_stream_waits_for_the_event_as_it_was_recorded(device):
    first, second, gate, done = device.new_stream("a"), device.new_stream("b"), threading.Event(), []
    event = device.new_event()
    first.launch(lambda: done.append("first"))
    first.record(event)
    second.wait(event)
    first.launch(gate.wait)
    first.record(event)  # a later point: not what `second` waits for
    second.launch(lambda: done.append("second"))
    assert reached(recorded(device, second))
    assert done == ["first", "second"]
    gate.set()


@pytest.mark.parametrize("nbytes", [0, 1, PIECE_BYTES, 3 * PIECE_BYTES + 17])
def test_memory_is_copied(device, nbytes):
    stream, memory = device.new_stream("s"), device.alloc(nbytes)
    source = np.random.default_rng(0).integers(0, 256, nbytes).astype(np.uint8)
    stream.copy_async(memory.view, source)
    assert reached(recorded(device, stream))
    assert (memory.view == source).all()


def test_copies_overlap_and_end_in_order(device):
    """The second one's pieces come while the first one's last is held up; its event is reached behind the first's."""
    stream, gate, memory = device.new_stream("s"), threading.Event(), device.alloc(20)
    stream.copy_async(memory.view, [Step(memory.view[:10], 1, gate)])
    first = recorded(device, stream)
    placed = threading.Event()
    late = Step(memory.view[10:], 2)
    late.place = lambda buffer: (memory.view[10:].fill(2), placed.set())
    stream.copy_async(memory.view, [late])
    second = recorded(device, stream)
    assert placed.wait(PATIENCE_S)
    assert not first.query() and not second.query()
    gate.set()
    assert reached(second) and first.query()
    assert list(memory.view) == [1] * 10 + [2] * 10


def test_a_copy_behind_other_work_waits_for_it(device):
    stream, gate, memory = device.new_stream("s"), threading.Event(), device.alloc(4)
    stream.launch(gate.wait)
    stream.copy_async(memory.view, [Step(memory.view, 7)])
    event = recorded(device, stream)
    assert not event.wait(0.02)
    assert list(memory.view) == [0] * 4
    gate.set()
    assert reached(event)
    assert list(memory.view) == [7] * 4


def test_rows_of_peers_are_copied():
    one, two = HostDevice(MIB, name="one"), HostDevice(MIB, name="two")
    source, target = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    stream = two.new_stream("s")
    stream.peer_copy(target, source)
    assert reached(recorded(two, stream))
    assert (target == source).all()
    one.close()
    two.close()


def test_memory_is_limited(device):
    half = device.alloc(32 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"device host has 33\.6 MB left of 67\.1; 41\.9 MB are needed"):
        device.alloc(40 * MIB)
    half.free()
    half.free()
    assert device.free_bytes == device.capacity
    assert (device.alloc(40 * MIB).view == 0).all()


def test_work_behind_a_failure_is_not_done(device):
    stream, done = device.new_stream("s"), []

    def fail():
        raise ValueError("broken")

    stream.launch(fail)
    stream.launch(lambda: done.append(1))
    event = recorded(device, stream)
    with pytest.raises(ValueError, match="broken"):
        reached(event)
    stream.reset()
    stream.launch(lambda: done.append(2))
    stream.record(event)
    assert reached(event)
    assert done == [2]


@pytest.mark.parametrize("last", [True, False])
def test_a_piece_that_fails_fails_its_copy(device, last):
    stream, memory = device.new_stream("s"), device.alloc(20)
    bad = Step(memory.view[:10], 1)
    bad.place = lambda buffer: 1 // 0
    good = Step(memory.view[10:], 2)
    stream.copy_async(memory.view, [good, bad] if last else [bad, good])
    with pytest.raises(ZeroDivisionError):
        reached(recorded(device, stream))
    stream.reset()


def test_a_failure_reaches_who_waits_for_the_stream(device):
    first, second, done = device.new_stream("a"), device.new_stream("b"), []
    first.launch(lambda: 1 // 0)
    second.wait(recorded(device, first))
    second.launch(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        reached(recorded(device, second))
    assert done == []


def test_a_late_read_writes_nothing(device):
    stream, gate, memory = device.new_stream("s"), threading.Event(), device.alloc(10)
    begun = threading.Event()
    step = Step(memory.view, 9, gate)
    fetch = step.fetch
    step.fetch = lambda buffer: (begun.set(), fetch(buffer))
    stream.copy_async(memory.view, [step])
    event = recorded(device, stream)
    assert begun.wait(PATIENCE_S)
    stream.reset()
    with pytest.raises(CancelledError):
        event.query()
    gate.set()
    stream.copy_async(memory.view, [Step(memory.view, 3)])
    assert reached(recorded(device, stream))
    assert list(memory.view) == [3] * 10


def test_a_lost_device_stays_lost(device):
    stream, done = device.new_stream("s"), []
    device.lose("the link is down")
    device.lose("and again")
    stream.launch(lambda: done.append(1))
    event = recorded(device, stream)
    with pytest.raises(DeviceLostError, match="device host was lost: the link is down"):
        reached(event)
    stream.reset()
    with pytest.raises(DeviceLostError):
        device.alloc(1)
    stream.copy_async(np.zeros(4, np.uint8), np.ones(4, np.uint8))
    with pytest.raises(DeviceLostError):
        reached(recorded(device, stream))
    assert done == []
    assert "link" in str(device.failure)


def test_losing_one_device_leaves_the_other():
    one, two = HostDevice(MIB, name="one"), HostDevice(MIB, name="two")
    one.lose("gone")
    stream, done = two.new_stream("s"), []
    stream.launch(lambda: done.append(1))
    assert reached(recorded(two, stream))
    assert done == [1] and two.failure is None
    one.close()
    two.close()


def test_bandwidth_is_measured_and_capped():
    device = HostDevice(64 * MIB, cap=400e6)
    assert device.bandwidth is None
    stream, memory = device.new_stream("s"), device.alloc(40 * MIB)
    stream.copy_async(memory.view, np.ones(40 * MIB, np.uint8))
    assert reached(recorded(device, stream))
    assert 0 < device.bandwidth <= 400e6 * 1.05
    device.close()


def test_a_stream_that_waits_can_be_reset(device):
    first, second, gate = device.new_stream("a"), device.new_stream("b"), threading.Event()
    first.launch(gate.wait)
    second.wait(recorded(device, first))
    event = recorded(device, second)
    second.reset()
    with pytest.raises(CancelledError):
        event.query()
    gate.set()


def test_memory_needs_no_registration(device):
    device.register(np.zeros(4, np.uint8), pinned=True, portable=True)

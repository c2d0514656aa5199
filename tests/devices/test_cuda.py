"""CUDA devices, on a stand-in for the driver: order, events, copies, limits, flags, and failures that stay."""

import threading
import time

import numpy as np
import pytest
import torch
from stand_in import ThreadRuntime

from localmoe.devices.cuda import CudaDevice, connect
from localmoe.devices.cuda_peer import CHUNK_BYTES
from localmoe.errors import CancelledError, DeviceLostError, OutOfMemoryError

PATIENCE_S = 10
MIB = 1 << 20


@pytest.fixture
def device():
    with_all = CudaDevice(ThreadRuntime(), "GPU 0")
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
    """Fetches its number, and copies it from the buffer to its target; `gate` holds up its read."""

    in_place = False
    buffer_bytes = 4096

    def __init__(self, target, value, gate=None):
        self.target, self.value, self.gate, self.nbytes = target, value, gate, len(target)

    def fetch(self, buffer):
        if self.gate:
            self.gate.wait(PATIENCE_S)
        buffer[: self.nbytes] = self.value

    def place(self, buffer):
        self.target.copy_(torch.from_numpy(buffer[: self.nbytes]), non_blocking=True)


def numbers(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes).astype(np.uint8)


def test_work_is_done_in_order(device):
    stream, done = device.new_stream("s"), []
    for n in range(50):
        stream.launch(lambda n=n: done.append(n))
    assert reached(recorded(device, stream))
    assert done == list(range(50))


def test_an_event_is_not_reached_before_its_work_and_tells_when_it_was(device):
    stream, gate = device.new_stream("s"), threading.Event()
    stream.launch(lambda: gate.wait(PATIENCE_S))
    event = recorded(device, stream)
    assert not event.query() and not event.wait(0.01) and event.reached_s is None
    start_s = time.perf_counter()
    gate.set()
    assert reached(event) and event.query()
    assert start_s <= event.reached_s <= time.perf_counter()


def test_no_event_is_in_the_future_however_late_the_clock_was_read():
    class Slow(ThreadRuntime):
        def synchronize(self, stream):
            super().synchronize(stream)
            time.sleep(0.05)  # someone else has the core

    device = CudaDevice(Slow(), "GPU 0")
    stream, events = device.new_stream("s"), []
    start_s = time.perf_counter()
    for _ in range(2):
        stream.launch(lambda: time.sleep(0.01))
        events.append(recorded(device, stream))
    assert reached(events[1]) and events[1].query()
    assert start_s <= events[1].reached_s <= time.perf_counter()
    assert 0.01 <= events[1].reached_s - events[0].reached_s < 0.05  # both by the same clock
    device.close()


def test_an_event_that_was_never_recorded_holds_nobody_up(device):
    event, stream = device.new_event(), device.new_stream("s")
    stream.wait(event)
    assert event.query() and event.reached_s is None and reached(recorded(device, stream))


def test_a_stream_waits_for_the_event_as_it_was_recorded(device):
    first, second, gate, done = device.new_stream("a"), device.new_stream("b"), threading.Event(), []
    event = device.new_event()
    first.launch(lambda: done.append("first"))
    first.record(event)
    second.wait(event)
    first.launch(lambda: gate.wait(PATIENCE_S))
    first.record(event)  # a later point: not what `second` waits for
    second.launch(lambda: done.append("second"))
    assert reached(recorded(device, second))
    assert done == ["first", "second"]
    gate.set()


@pytest.mark.parametrize("nbytes", [1, 4096, 3 * MIB + 17])
def test_memory_is_copied_there_and_back_without_another_copy(device, nbytes):
    stream, memory = device.new_stream("s"), device.alloc(nbytes)
    source, back = numbers(nbytes), np.zeros(nbytes, np.uint8)
    device.register(source, pinned=True, portable=True)
    stream.copy_async(memory.view, source)
    stream.copy_async(back, memory.view)
    assert reached(recorded(device, stream))
    assert (back == source).all()
    assert device.runtime.copies[0] == (nbytes, True)  # one copy, from page-locked memory


def test_copies_keep_within_what_was_locked_by_one_call(device):
    memory, stream = device.alloc(3 * MIB), device.new_stream("s")
    source = numbers(3 * MIB)
    for at in range(3):
        device.lock(source.ctypes.data + at * MIB, MIB)
    stream.copy_async(memory.view[: 2 * MIB], source[MIB // 2 : 2 * MIB + MIB // 2])
    assert reached(recorded(device, stream))
    assert (memory.view[: 2 * MIB].numpy() == source[MIB // 2 : 2 * MIB + MIB // 2]).all()
    assert device.runtime.copies == [(MIB // 2, True), (MIB, True), (MIB // 2, True)]
    for at in range(3):
        device.unlock(source.ctypes.data + at * MIB)
    stream.copy_async(memory.view, source)
    assert reached(recorded(device, stream)) and device.runtime.copies[-1] == (3 * MIB, False)


def test_rows_pass_between_device_and_host_in_order(device):
    stream = device.new_stream("s")
    rows = device.alloc(24).view.view(torch.float32).reshape(2, 3)
    source, back = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    stream.peer_copy(rows, source)
    stream.launch(lambda: rows.mul_(2))
    stream.peer_copy(back, rows)
    assert reached(recorded(device, stream))
    assert (back == 2 * source).all()


def test_files_come_through_page_locked_buffers_in_the_streams_order(device):
    stream, gate, memory, done = device.new_stream("s"), threading.Event(), device.alloc(40), []
    steps = [Step(memory.view[at : at + 10], at + 1, gate) for at in range(0, 40, 10)]
    stream.copy_async(memory.view, steps)
    stream.launch(lambda: done.append(memory.view.tolist()))
    event, other = recorded(device, stream), device.new_stream("t")
    other.wait(event)  # not issued yet, and nobody is held up by that
    other.launch(lambda: done.append("other"))
    late = recorded(device, other)
    assert not event.wait(0.02) and not late.query() and done == []
    gate.set()
    assert reached(late)
    assert done == [[1] * 10 + [11] * 10 + [21] * 10 + [31] * 10, "other"]


def test_a_piece_that_cannot_be_read_fails_what_is_behind_it(device):
    stream, memory, done = device.new_stream("s"), device.alloc(10), []
    bad = Step(memory.view, 1)
    bad.fetch = lambda buffer: 1 // 0
    stream.copy_async(memory.view, [bad])
    stream.launch(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        reached(recorded(device, stream))
    stream.reset()
    stream.launch(lambda: done.append(2))
    assert reached(recorded(device, stream)) and done == [2]


def test_a_late_read_writes_nothing(device):
    stream, gate, begun, memory = device.new_stream("s"), threading.Event(), threading.Event(), device.alloc(10)
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
    assert memory.view.tolist() == [3] * 10


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("nbytes", [12, 2 * CHUNK_BYTES + 20])
def test_rows_of_another_gpu_are_copied(direct, nbytes):
    """By itself, or through page-locked memory in chunks: the same bytes, behind what the stream did before."""
    one, two = (CudaDevice(ThreadRuntime(), name) for name in ("GPU 0", "GPU 1"))
    if direct:
        two.runtime.peers.append(one.runtime)
    connect([one, two])
    source, target = one.alloc(nbytes), two.alloc(nbytes)
    makes, takes, gate = one.new_stream("a"), two.new_stream("b"), threading.Event()
    values = torch.from_numpy(numbers(nbytes))
    makes.launch(lambda: (gate.wait(PATIENCE_S), source.view.copy_(values)))
    takes.wait(recorded(one, makes))
    takes.peer_copy(target.view, source.view)
    event = recorded(two, takes)
    assert not event.wait(0.01)
    gate.set()
    assert reached(event)
    assert torch.equal(target.view, values)
    one.close()
    two.close()


def test_memory_is_limited_to_what_was_given_and_to_what_is_there():
    device = CudaDevice(ThreadRuntime(64 * MIB), "GPU 1", 48 * MIB)
    half = device.alloc(32 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"GPU 1 \(stand-in\) has 16\.8 MB left of 50\.3; 41\.9 MB are needed"):
        device.alloc(40 * MIB)
    half.free()
    half.free()
    assert device.free_bytes == device.capacity
    most = device.alloc(40 * MIB)
    assert (most.view == 0).all()
    most.free()
    others = device.runtime.alloc(40 * MIB)  # another program takes some
    assert device.free_bytes == 24 * MIB
    del others
    device.close()


def test_work_behind_a_failure_is_not_done(device):
    stream, done = device.new_stream("s"), []
    device.runtime.late = False

    def fail():
        raise ValueError("broken")

    stream.launch(fail)
    stream.launch(lambda: done.append(1))
    event, other = recorded(device, stream), device.new_stream("t")
    with pytest.raises(ValueError, match="broken"):
        reached(event)
    other.wait(event)
    with pytest.raises(ValueError, match="broken"):
        reached(recorded(device, other))
    stream.reset()
    stream.launch(lambda: done.append(2))
    stream.record(event)
    assert reached(event) and done == [2] and device.failure is None


def test_a_failure_of_cuda_is_the_devices_for_good(device):
    stream, flag = device.new_stream("s"), device.new_flag()
    gate = threading.Event()
    stream.launch(lambda: gate.wait(PATIENCE_S))
    event = recorded(device, stream)
    stream.write_flag(flag, 1)
    device.runtime.fail("CUDA error: an illegal memory access was encountered")
    gate.set()
    with pytest.raises(DeviceLostError, match=r"device GPU 0 \(stand-in\) was lost: CUDA error: an illegal memory"):
        event.wait(PATIENCE_S)
    with pytest.raises(DeviceLostError):
        flag.wait(1, PATIENCE_S)
    assert isinstance(device.failure, DeviceLostError) and "dmesg" in device.failure.hint
    stream.reset()
    with pytest.raises(DeviceLostError):
        device.alloc(1)
    stream.launch(lambda: 1 // 0)
    with pytest.raises(DeviceLostError):
        reached(recorded(device, stream))
    assert device.free_bytes == 0 and device.bandwidth is None


def test_losing_one_device_leaves_the_other():
    one, two = (CudaDevice(ThreadRuntime(), name) for name in ("GPU 0", "GPU 1"))
    connect([one, two])
    one.runtime.fail("it has fallen off the bus")
    with pytest.raises(DeviceLostError):
        one.alloc(1)
    stream, done = two.new_stream("s"), []
    stream.launch(lambda: done.append(1))
    assert reached(recorded(two, stream)) and done == [1] and two.failure is None
    one.close()
    two.close()


def test_reset_waits_for_what_cuda_was_given(device):
    stream, done = device.new_stream("s"), []
    stream.launch(lambda: (time.sleep(0.05), done.append(1)))
    stream.reset()
    assert done == [1]


def test_bandwidth_is_measured_by_events(device):
    assert device.bandwidth is None
    stream, memory = device.new_stream("s"), device.alloc(32 * MIB)
    device.runtime.seconds = lambda first, last: 0.25 if first is not last else 0.0
    for _ in range(3):
        stream.copy_async(memory.view, np.ones(32 * MIB, np.uint8))
        stream.copy_async(memory.view[:100], np.ones(100, np.uint8))  # too small to tell anything
    assert reached(recorded(device, stream))
    assert device.bandwidth == 3 * 32 * MIB / 0.75


def test_locking_may_be_refused():
    device = CudaDevice(ThreadRuntime(lockable=4096), "GPU 0")
    with pytest.raises(OSError, match="out of memory"):
        device.register(np.zeros(8192, np.uint8), pinned=True, portable=True)
    device.close()


def test_stream_and_host_take_turns(device):
    stream, asks, answers, done = device.new_stream("s"), device.new_flag(), device.new_flag(), []
    for turn in range(1, 51):  # all issued ahead, as one step of decode is
        stream.launch(lambda turn=turn: done.append(turn))
        stream.write_flag(asks, turn)
        stream.wait_flag(answers, turn)
    for turn in range(1, 51):
        assert asks.wait(turn, PATIENCE_S)
        assert len(done) == turn  # the stream waits
        answers.set(turn)
    assert reached(recorded(device, stream)) and asks.value == 50


def test_a_flag_tells_why_it_is_not_written_until_that_is_issued_again(device):
    stream, other, flag = device.new_stream("s"), device.new_stream("t"), device.new_flag()
    device.runtime.late = False
    stream.launch(lambda: 1 // 0)
    stream.write_flag(flag, 1)
    with pytest.raises(ZeroDivisionError):
        flag.wait(1, PATIENCE_S)
    other.wait_flag(flag, 1)
    with pytest.raises(ZeroDivisionError):
        reached(recorded(device, other))
    stream.reset()
    stream.write_flag(flag, 2)
    assert flag.wait(1, PATIENCE_S)


def test_a_stream_that_waits_for_a_flag_can_be_reset(device):
    stream, flag, done = device.new_stream("s"), device.new_flag(), []
    stream.wait_flag(flag, 7)
    assert not recorded(device, stream).wait(0.01)
    stream.reset()
    stream.launch(lambda: done.append(1))
    assert reached(recorded(device, stream)) and done == [1]
    assert not flag.wait(8, 0.01)

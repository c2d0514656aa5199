"""CUDA devices on a real GPU; the same semantics run on a stand-in in test_cuda.py."""

import time

import numpy as np
import pytest
import torch

from localmoe.devices.cuda import open_devices
from localmoe.errors import OutOfMemoryError
from localmoe.weights.arena import Arena
from localmoe.weights.page_lock import PageLock

pytestmark = pytest.mark.gpu

PATIENCE_S = 20
MIB = 1 << 20


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use")
    (found,) = open_devices([0], ["GPU 0"])
    yield found
    found.close()


def recorded(device, stream):
    event = device.new_event()
    stream.record(event)
    return event


def test_copies_kernels_and_events_keep_their_order(device):
    stream, memory = device.new_stream("s"), device.alloc(64 * MIB)
    source = np.random.default_rng(0).integers(0, 256, 64 * MIB).astype(np.uint8)
    back = np.zeros_like(source)
    device.register(source, pinned=True, portable=True)
    stream.copy_async(memory.view, source)
    stream.launch(lambda: memory.view.add_(1))
    stream.peer_copy(back, memory.view)
    event = recorded(device, stream)
    assert event.wait(PATIENCE_S)
    assert (back == source + 1).all()
    assert 0 <= time.perf_counter() - event.reached_s < PATIENCE_S


def test_a_stream_waits_for_anothers_event(device):
    first, second, memory = device.new_stream("a"), device.new_stream("b"), device.alloc(64 * MIB)
    for value in range(1, 20):
        first.launch(lambda value=value: memory.view.fill_(value))
        second.wait(recorded(device, first))
        back = np.zeros(64 * MIB, np.uint8)
        second.copy_async(back, memory.view)
        assert recorded(device, second).wait(PATIENCE_S)
        assert (back == value).all()


def test_stream_and_host_take_turns(device):
    stream, asks, answers = device.new_stream("s"), device.new_flag(), device.new_flag()
    rows, host = device.alloc(4).view.view(torch.int32), np.zeros(1, np.int32)
    device.register(host, pinned=True, portable=True)
    for turn in range(1, 201):
        stream.launch(lambda turn=turn: rows.fill_(turn))
        stream.peer_copy(host, rows)
        stream.write_flag(asks, turn)
        stream.wait_flag(answers, turn)
    for turn in range(1, 201):
        assert asks.wait(turn, PATIENCE_S)
        assert host[0] == turn  # what the stream wrote before the flag is seen, and it waits
        answers.set(turn)
    assert recorded(device, stream).wait(PATIENCE_S)


def test_a_stream_that_waits_for_a_flag_can_be_reset(device):
    stream, flag = device.new_stream("s"), device.new_flag()
    stream.wait_flag(flag, 7)
    assert not recorded(device, stream).wait(0.02)
    stream.reset()
    assert recorded(device, stream).wait(PATIENCE_S)


def test_memory_is_limited(device):
    with pytest.raises(OutOfMemoryError, match=r"GPU 0 \(.*\) has .* MB left of .* are needed"):
        device.alloc(device.free_bytes + MIB)


def test_page_locked_weights_are_copied_at_the_links_speed(device):
    """At least 0.9 of what torch's own page-locked memory reaches, also across the slices that are locked."""
    num_bytes = 1 << 30
    arena = Arena(num_bytes)
    arena.view(0, num_bytes)[:] = 7
    lock = PageLock(arena.address, arena.page_bytes, device.lock, device.unlock)
    if not lock.is_locked:
        pytest.skip(lock.note)
    stream, memory = device.new_stream("s"), device.alloc(num_bytes)
    own = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    times = {id(arena): [], id(own): []}
    for _ in range(5):
        for owner, source in ((arena, arena.view(0, num_bytes)), (own, own)):
            begun = recorded(device, stream)
            stream.copy_async(memory.view, source)
            ended = recorded(device, stream)
            assert ended.wait(PATIENCE_S)
            times[id(owner)].append(ended.reached_s - begun.reached_s)
    lock.release()
    assert min(times[id(own)]) >= 0.9 * min(times[id(arena)])
    assert device.bandwidth > 0


def test_rows_of_another_gpu_are_copied():
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    one, two = open_devices([0, 1], ["GPU 0", "GPU 1"])
    source, target = one.alloc(33 * MIB), two.alloc(33 * MIB)
    makes, takes = one.new_stream("a"), two.new_stream("b")
    for value in (3, 9):
        makes.launch(lambda value=value: source.view.fill_(value))
        takes.wait(recorded(one, makes))
        takes.peer_copy(target.view, source.view)
        assert recorded(two, takes).wait(PATIENCE_S)
        assert bool((target.view == value).all())
    one.close()
    two.close()

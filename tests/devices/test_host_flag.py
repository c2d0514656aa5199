"""Flags of the host device: how a stream and the host hand over to each other."""

import threading

import pytest

from localmoe.devices.host import HostDevice
from localmoe.errors import CancelledError, DeviceLostError

PATIENCE_S = 10


@pytest.fixture
def device():
    with_all = HostDevice(1 << 20)
    yield with_all
    with_all.close()


def recorded(device, stream):
    event = device.new_event()
    stream.record(event)
    return event


def test_the_host_sees_what_was_done_before_the_stream_wrote_the_flag(device):
    stream, flag, gate, done = device.new_stream("s"), device.new_flag(), threading.Event(), []
    stream.launch(gate.wait)
    stream.launch(lambda: done.append(1))
    stream.write_flag(flag, 3)
    assert not flag.wait(1, 0.01) and flag.value == 0
    gate.set()
    assert flag.wait(3, PATIENCE_S) and done == [1] and flag.value == 3


def test_a_stream_waits_until_the_host_sets_the_flag(device):
    stream, flag, done = device.new_stream("s"), device.new_flag(), []
    stream.wait_flag(flag, 2)
    stream.launch(lambda: done.append(1))
    event = recorded(device, stream)
    flag.set(1)
    assert not event.wait(0.03) and done == []
    flag.set(5)  # any higher value does
    assert event.wait(PATIENCE_S) and done == [1]


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
    assert recorded(device, stream).wait(PATIENCE_S) and done == list(range(1, 51))


def test_a_flag_tells_why_it_is_not_written_until_it_is(device):
    stream, flag = device.new_stream("s"), device.new_flag()
    stream.launch(lambda: 1 // 0)
    stream.write_flag(flag, 1)
    with pytest.raises(ZeroDivisionError):
        flag.wait(1, PATIENCE_S)
    stream.reset()
    stream.write_flag(flag, 2)
    assert flag.wait(1, PATIENCE_S)


def test_a_stream_that_waits_for_a_flag_can_be_reset(device):
    stream, flag, done = device.new_stream("s"), device.new_flag(), []
    stream.wait_flag(flag, 1)
    stream.launch(lambda: done.append(1))
    event = recorded(device, stream)
    stream.reset()
    with pytest.raises(CancelledError):
        event.query()
    flag.set(1)
    stream.launch(lambda: done.append(2))
    assert recorded(device, stream).wait(PATIENCE_S) and done == [2]


def test_a_stream_fails_with_the_stream_that_was_to_write_its_flag(device):
    first, second, flag = device.new_stream("a"), device.new_stream("b"), device.new_flag()
    second.wait_flag(flag, 1)
    first.launch(lambda: 1 // 0)
    first.write_flag(flag, 1)
    with pytest.raises(ZeroDivisionError):
        recorded(device, second).wait(PATIENCE_S)


def test_a_lost_device_fails_its_flags(device):
    stream, flag = device.new_stream("s"), device.new_flag()
    device.lose("the link is down")
    stream.write_flag(flag, 1)
    with pytest.raises(DeviceLostError, match="the link is down"):
        flag.wait(1, PATIENCE_S)

import threading
import time

from localmoe.engine.pulse import BEAT_S, Pulse
from localmoe.engine.stream import EventStream
from localmoe.events import Failed, TextDelta


def test_what_is_put_comes_out_in_order_and_ends():
    stream = EventStream(lambda: None)
    events = [TextDelta("a"), TextDelta("b"), Failed("c")]
    for event in [*events, TextDelta("too late")]:
        stream.put(event)
    assert list(stream.events()) == events
    assert list(stream.events()) == []


def test_a_reader_waits_for_what_comes():
    stream = EventStream(lambda: None)
    threading.Timer(0.05, lambda: stream.put(Failed("late"))).start()
    assert list(stream.events()) == [Failed("late")]


def test_two_readers_both_end():
    stream = EventStream(lambda: None)
    got: list[int] = []
    readers = [threading.Thread(target=lambda: got.append(len(list(stream.events())))) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(99):
        stream.put(TextDelta(str(n)))
    stream.put(Failed("end"))
    for reader in readers:
        reader.join(5)
    assert sum(got) == 100


def test_cancel_asks_until_the_end():
    asked: list[int] = []
    stream = EventStream(lambda: asked.append(1))
    stream.cancel()
    stream.put(Failed("end"))
    stream.cancel()
    assert len(asked) == 1


def test_a_pulse_beats_only_meanwhile():
    pulse, beats = Pulse(), []
    with pulse.beating(lambda: beats.append(1)):
        time.sleep(2.5 * BEAT_S)
    assert len(beats) in (1, 2)
    count = len(beats)
    time.sleep(1.5 * BEAT_S)
    assert len(beats) == count
    with pulse.beating(lambda: beats.append(1)):
        pass
    assert len(beats) == count
    pulse.close()

import threading
import time

import pytest

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import Request
from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine
from localmoe.errors import ModelNotFoundError
from localmoe.events import Failed, Finished, Heat, Lanes, Loading, Lost, PrefillProgress, Stats, TextDelta
from localmoe.tui import bridge as bridge_module
from localmoe.tui.bridge import Bridge, Opened, merge

REQUEST = Request(Conversation((Message("user", "hello"),)))


def merged(*events):
    kept = []
    for event in events:
        merge(kept, event)
    return kept


def take_until(bridge, kind, limit_s=10.0):
    events, deadline = [], time.monotonic() + limit_s
    while not any(isinstance(event, kind) for event in events):
        assert time.monotonic() < deadline
        events += bridge.take()
        time.sleep(0.002)
    return events


def opened(*scripts):
    bridge = Bridge(lambda report: ScriptedEngine(scripts or ("Hello there.",)))
    bridge.open()
    take_until(bridge, Opened)
    return bridge


def test_text_of_one_channel_joins():
    assert merged(TextDelta("a"), TextDelta("b"), TextDelta("c", "thought"), TextDelta("d")) == [
        TextDelta("ab"),
        TextDelta("c", "thought"),
        TextDelta("d"),
    ]


def test_progress_replaces_its_elder():
    assert merged(PrefillProgress(1, 9, 0), PrefillProgress(5, 9, 0)) == [PrefillProgress(5, 9, 0)]
    assert merged(Loading("reading", 1, 9), Loading("reading", 2, 9)) == [Loading("reading", 2, 9)]


def test_of_looks_into_the_engine_the_last_one_counts():
    lanes, heat = [Lanes(n, 4.0, ()) for n in (1.0, 2.0)], Heat(1, 4, 1, ((1,),))
    assert merged(lanes[0], heat, lanes[1], TextDelta("a")) == [heat, lanes[1], TextDelta("a")]


def test_every_measurement_stays():
    stats = [Stats(1, 0, n, 0, n, 9) for n in range(3)]
    assert merged(*stats) == stats


def test_the_end_stays_last():
    events = merged(PrefillProgress(9, 9, 0), TextDelta("a"), Failed("no"))
    assert isinstance(events[-1], Failed)


def test_an_answer_comes_whole():
    bridge = opened("Hello there, how are you?")
    bridge.ask(REQUEST)
    events = take_until(bridge, Finished)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello there, how are you?"
    bridge.close()


def test_what_is_wrong_with_a_request_comes_as_an_event():
    bridge = opened()
    bridge.ask(Request(Conversation()))
    (failed,) = [event for event in take_until(bridge, Failed) if isinstance(event, Failed)]
    assert failed.exit_code == 2
    bridge.close()


def test_a_stop_before_the_submission_counts():
    bridge = opened(Script("word " * 1000, pause_after=500))
    slow, submit = threading.Event(), bridge.engine.submit

    def slow_submit(request):
        slow.wait(5)
        return submit(request)

    bridge.engine.submit = slow_submit
    bridge.ask(REQUEST)
    bridge.stop()
    slow.set()
    assert take_until(bridge, Finished)[-1].reason == "cancelled"
    bridge.close()


def test_an_engine_that_cannot_open_says_why():
    def broken(report):
        raise ModelNotFoundError("nope is not on this machine", "download it")

    bridge = Bridge(broken)
    bridge.open()
    assert take_until(bridge, Failed) == [Failed("nope is not on this machine", "download it", 4)]
    bridge.close()


def test_a_fault_below_is_shown_and_not_lost():
    def broken(report):
        raise RuntimeError("boom")

    bridge = Bridge(broken)
    bridge.open()
    (failed,) = take_until(bridge, Failed)
    assert "boom" in failed.message and "report" in failed.hint
    bridge.close()


def test_a_fault_in_the_middle_of_an_answer_ends_it():
    class Broken:
        def events(self):
            yield TextDelta("half an")
            raise RuntimeError("boom")

        def cancel(self):
            pass

    bridge = opened()
    bridge.engine.submit = lambda request: Broken()
    bridge.ask(REQUEST)
    assert "boom" in take_until(bridge, Failed)[-1].message
    bridge.close()


def test_leaving_while_it_opens_ends_the_opening():
    started, ended = threading.Event(), threading.Event()

    def slow(report):
        try:
            while True:
                report(Loading("reading", 1, 2))
                started.set()
                time.sleep(0.005)
        finally:
            ended.set()

    bridge = Bridge(slow)
    bridge.open()
    assert started.wait(5)
    bridge.close()
    assert ended.is_set()
    assert bridge.take() == [Loading("reading", 1, 2)]


def test_leaving_waits_for_a_stuck_engine_only_so_long(monkeypatch):
    monkeypatch.setattr(bridge_module, "CLOSE_WAIT_S", 0.1)
    bridge, forever = opened(), threading.Event()
    bridge.engine.close = lambda: forever.wait(30)
    start = time.monotonic()
    bridge.close()
    assert time.monotonic() - start < 2
    forever.set()


def test_a_conversation_beside_another_one_uses_its_engine():
    first = opened(Script("a b", pause_after=1), "c")
    second = first.beside()
    assert [type(event) for event in second.take()] == [Opened]
    first.ask(REQUEST)
    take_until(first, TextDelta)
    second.ask(REQUEST)
    first.stop()
    assert take_until(first, Finished)[-1].reason == "cancelled"
    assert take_until(second, Finished)[-1].text == "c"
    second.leave()
    assert first.engine
    first.close()


def test_that_the_engine_is_gone_is_told_after_the_answer_has_ended():
    reports = []

    def opens(report):
        reports.append(report)
        return ScriptedEngine([Script("a b", pause_after=1)])

    bridge = Bridge(opens)
    bridge.open()
    take_until(bridge, Opened)
    bridge.ask(REQUEST)
    take_until(bridge, TextDelta)
    reports[0](Lost("it has ended"))
    bridge.stop()
    events = take_until(bridge, Lost)
    assert isinstance(events[-2], Finished) and events[-1] == Lost("it has ended")
    bridge.open()
    take_until(bridge, Opened)
    assert len(reports) == 2
    bridge.close()


def test_a_question_asked_before_it_is_known_that_the_engine_is_gone_fails_first():
    reports = []

    def opens(report):
        reports.append(report)
        return ScriptedEngine()

    bridge = Bridge(opens)
    bridge.open()
    take_until(bridge, Opened)
    bridge.engine.close()
    reports[0](Lost("it has ended"))
    bridge.ask(REQUEST)
    assert [type(event) for event in take_until(bridge, Lost)] == [Failed, Lost]
    bridge.close()


def test_an_engine_that_is_open_is_not_opened_again():
    bridge = opened()
    engine = bridge.engine
    bridge.open()
    assert bridge.engine is engine
    bridge.close()


def test_closing_before_opening_is_harmless():
    Bridge(lambda report: pytest.fail("never opened")).close()

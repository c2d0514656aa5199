import time

import pytest

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import Request
from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.events import Event, Failed, Finished, PrefillProgress, Queued, Stats, TextDelta


def ask(text: str = "Why?", **options) -> Request:
    return Request(Conversation((Message("user", text),)), **options)


def text_of(events: list[Event], channel: str = "answer") -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.channel == channel)


def test_thought_then_answer_and_the_same_events_every_time():
    def run() -> list[Event]:
        engine = ScriptedEngine([Script("Because it is.", thought="Let me see.")])
        return list(engine.submit(ask()).events())

    events = run()
    assert text_of(events) == "Because it is." and text_of(events, "thought") == "Let me see."
    end = events[-1]
    assert isinstance(end, Finished) and (end.reason, end.reasoning) == ("stop", "Let me see.")
    assert isinstance(events[-2], Stats) and events[-2].completion_tokens == 6
    assert run() == events


def test_progress_counts_what_the_session_has_cached():
    engine = ScriptedEngine(["one two"])
    list(engine.submit(ask()).events())
    first = next(engine.submit(ask("and now a longer question?")).events())
    assert isinstance(first, PrefillProgress)
    assert first.done_tokens == first.cached_tokens == 5


def test_scripts_may_depend_on_the_request():
    engine = ScriptedEngine(lambda request: request.conversation.messages[-1].text.upper())
    assert text_of(list(engine.submit(ask("so be it")).events())) == "SO BE IT"


def test_a_second_request_waits_its_turn():
    engine = ScriptedEngine([Script("a b", pause_after=1), "c"])
    first, second, third = (engine.submit(ask()) for _ in range(3))
    assert next(second.events()) == Queued(0) and next(third.events()) == Queued(1)
    third.cancel()
    engine.resume()
    assert text_of(list(first.events())) == "a b"
    assert text_of(list(second.events())) == "c"
    assert list(third.events())[-1].reason == "cancelled"


def test_cancel_keeps_the_partial_answer():
    engine = ScriptedEngine([Script("one two three", pause_after=2)])
    handle = engine.submit(ask())
    events = []
    for event in handle.events():
        events.append(event)
        if text_of(events) == "one two":
            handle.cancel()
    assert events[-1].reason == "cancelled" and events[-1].text == "one two"


def test_delays_are_real_when_scaled():
    engine = ScriptedEngine([Script("a b", prefill_ticks=1, prefill_tick_s=1.0, token_s=1.0)], time_scale=0.02)
    start = time.monotonic()
    list(engine.submit(ask()).events())
    assert time.monotonic() - start >= 0.06


def test_a_failure_ends_the_stream_and_leaves_the_engine_usable():
    error = OutOfMemoryError("no room", "make some")
    engine = ScriptedEngine([Script("a b c", error=error, error_after=2), "fine"])
    events = list(engine.submit(ask()).events())
    assert text_of(events) == "a b" and events[-1] == Failed("no room", "make some", 5)
    assert text_of(list(engine.submit(ask()).events())) == "fine"


def test_an_exception_in_the_script_is_a_failure_too():
    engine = ScriptedEngine([Script("a", prefill_ticks="three")])  # type: ignore[arg-type]
    assert isinstance(list(engine.submit(ask()).events())[-1], Failed)


def test_limits():
    engine = ScriptedEngine(["a b c"])
    assert list(engine.submit(ask(max_tokens=2)).events())[-1].reason == "length"
    engine = ScriptedEngine([Script("a b c", prompt_tokens=4095)])
    assert list(engine.submit(ask()).events())[-1].reason == "context"
    with pytest.raises(UsageError, match="5,000 tokens"):
        ScriptedEngine([Script(prompt_tokens=5000)]).submit(ask())


def test_close_ends_every_stream():
    engine = ScriptedEngine([Script("a b", pause_in_prefill=1)])
    handles = [engine.submit(ask()) for _ in range(3)]
    engine.close()
    engine.close()
    assert all(list(h.events())[-1].reason == "cancelled" for h in handles)

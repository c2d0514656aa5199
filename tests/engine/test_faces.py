"""What frontends rely on, the same for every engine."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from backends import open_engine
from lending import joined, lent
from order import assert_in_order

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineFace, Request, Sampling
from localmoe.engine.script import Script
from localmoe.engine.scripted import DEMO_INFO, ScriptedEngine
from localmoe.errors import LocalmoeError, UsageError
from localmoe.events import Finished, PrefillProgress, TextDelta, decode, encode

LONG = Script("word " * 60, thought="hm " * 5, prefill_tick_s=0.01, token_s=0.005)
FACES = ["scripted", "scripted-timed", "reference", "cpu", "remote-scripted", "remote-cpu"]


@pytest.fixture(params=FACES)
def face(request, checkpoint, tmp_path) -> Iterator[EngineFace]:
    engine = open_face(request.param.removeprefix("remote-"), checkpoint)
    if request.param.startswith("remote"):
        with lent(engine, tmp_path):
            remote = joined(tmp_path)
            yield remote
            remote.close()
    else:
        yield engine
        engine.close()


def open_face(name: str, checkpoint) -> EngineFace:
    if name.startswith("scripted"):
        info = replace(DEMO_INFO, context_limit=512)
        return ScriptedEngine([LONG], info=info, time_scale=float("timed" in name))
    return open_engine(checkpoint, name, prefill_chunk=32, context=512)


_names = count()


def ask(text: str = "Why is the sky blue?", **options) -> Request:
    options = {"sampling": Sampling(temperature=0), "max_tokens": 6, "session": f"s{next(_names)}"} | options
    return Request(Conversation((Message("user", text),)), **options)


def test_an_answer_comes_in_order(face):
    events = list(face.submit(ask()).events())
    assert_in_order(events)
    assert events[-1].reason == "length" and events[-1].completion_tokens == 6


def test_events_survive_json(face):
    for event in face.submit(ask()).events():
        assert decode(encode(event)) == event


def test_an_ended_stream_stays_ended(face):
    handle = face.submit(ask())
    assert list(handle.events())
    assert list(handle.events()) == []
    handle.cancel()


def test_tokens_are_counted_as_they_are_read(face):
    request = ask("One, two, three; four.")
    end = list(face.submit(request).events())[-1]
    assert face.count_tokens(request.conversation) == end.prompt_tokens == len(end.prompt_ids)


def test_the_same_session_has_its_prompt_cached(face):
    list(face.submit(ask(session="a")).events())
    longer = list(face.submit(ask("Why is the sky blue? And the sea?", session="a")).events())
    assert_in_order(longer)
    first = next(e for e in longer if isinstance(e, PrefillProgress))
    assert first.cached_tokens > 3


def test_several_at_once_all_end_in_order(face):
    handles = [face.submit(ask(f"Question {n}?")) for n in range(4)]
    for handle in handles:
        events = list(handle.events())
        assert_in_order(events)
        assert isinstance(events[-1], Finished)


def test_cancel_keeps_what_there_is(face):
    handle, events = face.submit(ask(max_tokens=400)), []
    for event in handle.events():
        events.append(event)
        if isinstance(event, TextDelta):
            handle.cancel()
    assert_in_order(events)
    assert events[-1].reason in ("cancelled", "stop", "length")
    assert events[-1].text + events[-1].reasoning


def test_cancel_before_anything_happened(face):
    handles = [face.submit(ask(max_tokens=400)) for _ in range(3)]
    for handle in reversed(handles):
        handle.cancel()
    for handle in handles:
        events = list(handle.events())
        assert_in_order(events)
        assert isinstance(events[-1], Finished)
    assert isinstance(list(face.submit(ask()).events())[-1], Finished)


@pytest.mark.parametrize(
    "request_",
    [
        Request(Conversation()),
        ask(" "),
        ask(max_tokens=0),
        ask(sampling=Sampling(temperature=-1)),
        ask(sampling=Sampling(top_p=0)),
        ask("long " * 600),
    ],
)
def test_a_wrong_request_is_refused_at_once(face, request_):
    with pytest.raises(UsageError) as caught:
        face.submit(request_)
    assert caught.value.hint


def test_close_cancels_and_refuses(face):
    handles = [face.submit(ask(max_tokens=400)) for _ in range(3)]
    start = time.monotonic()
    face.close()
    face.close()
    assert time.monotonic() - start < 5
    for handle in handles:
        events = list(handle.events())
        assert_in_order(events)
        assert isinstance(events[-1], Finished)
    with pytest.raises(LocalmoeError, match="closed"):
        face.submit(ask())


def test_the_info_is_complete(face):
    info = face.info
    assert info.model and info.description and info.isa and info.plan and info.num_threads >= 1
    assert info.context_limit == 512

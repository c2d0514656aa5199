"""The engine on real networks: what is cached, batched, cancelled or rewound never shows in the tokens."""

import json
import shutil
import time
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from order import assert_in_order
from tiny import make_checkpoint

from localmoe.chat.message import Conversation, Message
from localmoe.engine.engine import Engine
from localmoe.engine.request import Request, Sampling
from localmoe.errors import CancelledError, CheckpointError, ModelError, OutOfMemoryError
from localmoe.events import Event, Finished, Loading, PrefillProgress, TextDelta
from localmoe.hardware import Machine, probe
from localmoe.hub.header import read_header
from localmoe.settings import Settings

GREEDY = Sampling(temperature=0)
_names = count()


def conversation(*texts: str) -> Conversation:
    roles = ["user", "assistant"] * len(texts)
    return Conversation(tuple(Message(role, text) for role, text in zip(roles, texts, strict=False)))  # type: ignore[arg-type]


def ask(said: Conversation | str, session: str | None = None, max_tokens: int | None = 8, sampling=GREEDY) -> Request:
    said = conversation(said) if isinstance(said, str) else said
    return Request(said, sampling, max_tokens, session=session or f"s{next(_names)}")


def answer(engine: Engine, request: Request) -> Finished:
    events = list(engine.submit(request).events())
    assert_in_order(events)
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def fresh(opener, request: Request, **settings) -> tuple[int, ...]:
    engine = opener(prefill_chunk=512, context=512, **settings)
    try:
        return answer(engine, request).output_ids
    finally:
        engine.close()


LONG = "The quick brown fox jumps over the lazy dog, and again: " * 3


def test_a_follow_up_gives_what_a_fresh_run_gives(engine, opener):
    first = answer(engine, ask(LONG, "chat"))
    said = conversation(LONG, first.text, "And then?")
    second = answer(engine, ask(said, "chat"))
    assert second.cached_tokens > 100
    assert second.output_ids == fresh(opener, ask(said))


def test_an_edited_question_gives_what_a_fresh_run_gives(engine, opener):
    answer(engine, ask(conversation(LONG, "Yes.", "Why?"), "edit"))
    said = conversation(LONG[:100] + "no, a cat", "Yes.", "Why?")
    edited = answer(engine, ask(said, "edit"))
    assert 0 < edited.cached_tokens < edited.prompt_tokens
    assert edited.output_ids == fresh(opener, ask(said))


def test_a_shared_beginning_gives_what_a_fresh_run_gives(engine, opener):
    answer(engine, ask(LONG + "one", "left"))
    right = answer(engine, ask(LONG + "two", "right"))
    assert right.cached_tokens > 100
    assert right.output_ids == fresh(opener, ask(LONG + "two"))
    left = answer(engine, ask(LONG + "one", "left"))
    assert left.output_ids == fresh(opener, ask(LONG + "one"))


def test_the_chunk_does_not_matter(engine, opener):
    assert answer(engine, ask(LONG + "chunk")).output_ids == fresh(opener, ask(LONG + "chunk"))


def test_a_batch_gives_what_each_gives_alone(engine):
    texts = ["a", "Why?", LONG, "What is a tile?", "One two three", "Hm"]
    alone = [answer(engine, ask(t, max_tokens=12)).output_ids for t in texts]
    handles = [engine.submit(ask(t, max_tokens=12)) for t in texts]
    ends = [list(h.events())[-1] for h in handles]
    assert [e.output_ids for e in ends] == alone


def test_seeds(engine):
    def sample(seed: int) -> tuple[int, ...]:
        return answer(engine, ask("Say something", sampling=Sampling(1.5, 1.0, seed=seed))).output_ids

    assert sample(1) == sample(1) != sample(2)


def test_a_repetition_penalty_avoids_what_was_said(engine):
    ids = answer(engine, ask("Say", max_tokens=30, sampling=Sampling(0, repetition_penalty=50.0))).output_ids
    assert len(set(ids)) == len(ids)


def test_any_stop_token_of_the_generation_config_stops(checkpoint, opener, tmp_path):
    probe = opener(context=512)
    ids = answer(probe, ask("Stop?", max_tokens=6)).output_ids
    probe.close()
    folder = tmp_path / "stops"
    shutil.copytree(checkpoint, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, ids[3]]}))
    engine = opener(folder, context=512)
    end = answer(engine, ask("Stop?", max_tokens=6))
    engine.close()
    assert end.reason == "stop" and end.output_ids == ids[: ids.index(ids[3]) + 1]


def test_the_context_ends_an_answer(opener):
    engine = opener(context=64, prefill_chunk=16)
    end = answer(engine, ask("0123456789", max_tokens=None))
    assert end.reason in ("context", "stop")
    if end.reason == "context":
        assert end.prompt_tokens + end.completion_tokens == 65  # the last one is not in the cache
    engine.close()


def test_cancels_at_random_moments_leave_the_engine_whole(engine):
    random = np.random.default_rng(5)
    expected = {t: answer(engine, ask(t, max_tokens=10)).output_ids for t in ("x", LONG, LONG + "y")}
    for _ in range(12):
        texts = random.choice(list(expected), 3)
        handles = [engine.submit(ask(str(t), f"c{random.integers(3)}", max_tokens=10)) for t in texts]
        time.sleep(random.random() * 0.2)
        handles[random.integers(3)].cancel()
        for text, handle in zip(texts, handles, strict=True):
            end = list(handle.events())[-1]
            assert isinstance(end, Finished)
            assert end.output_ids == expected[text][: len(end.output_ids)]
    cache = engine._opened.network.cache
    for session in engine._loop.sessions._sessions.values():
        session.table.release()
        session.ids.clear()
    assert cache.free_pages == cache.num_pages


def test_cancel_takes_less_than_a_tenth_of_a_second(engine):
    if engine.info.isa == "reference":
        pytest.skip("torch is not interrupted")
    for kind in (PrefillProgress, TextDelta):
        times = []
        for n in range(3):  # the best of three: other programs run on this machine
            handle = engine.submit(ask(f"{n} {kind.__name__} {LONG}", max_tokens=400))
            next(e for e in handle.events() if isinstance(e, kind))
            start = time.monotonic()
            handle.cancel()
            list(handle.events())
            times.append(time.monotonic() - start)
        assert min(times) < 0.1


def test_opening_is_told(checkpoint, opener):
    events: list[Event] = []
    engine = opener(on_event=events.append)
    engine.close()
    stages = [e.stage for e in events if isinstance(e, Loading)]
    assert list(dict.fromkeys(stages)) == ["checking", "reading", "preparing", "self-test"]
    reading = [e for e in events if e.stage == "reading"]
    assert reading[-1].done_bytes == reading[-1].total_bytes > 0


def test_opening_stops_before_the_next_shard_when_asked_to(tmp_path, monkeypatch):
    folder, read = make_checkpoint(tmp_path / "model", shards=5), []
    monkeypatch.setattr("localmoe.hub.checkpoint.read_header", lambda path: read.append(path) or read_header(path))
    with pytest.raises(CancelledError):
        Engine.open(str(folder), Settings(), cancelled=lambda: len(read) == 2)
    assert len(read) == 2


def test_a_wrong_name_is_told(opener):
    with pytest.raises(ModelError):
        opener(model="no-such-model")


def test_a_tokenizer_that_is_larger_than_the_model_is_refused_before_anything_is_loaded(checkpoint, opener, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"] |= {f"word{n}": 1000 + n for n in range(200)}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    events: list[Event] = []
    with pytest.raises(CheckpointError, match="they do not belong together"):
        opener(model=str(folder), on_event=events.append)
    assert not [e for e in events if isinstance(e, Loading) and e.stage != "checking"]


def test_too_little_memory_is_told_by_item(opener, monkeypatch):
    def probe_little(**options) -> Machine:
        found = probe(**options)
        return replace(found, memory=replace(found.memory, usable_bytes=100 << 20))

    monkeypatch.setattr("localmoe.engine.opening.probe", probe_little)
    with pytest.raises(OutOfMemoryError, match=r"0.1 GB are available \(routed experts"):
        opener()

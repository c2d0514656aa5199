"""Two GPUs: both read a long prompt while nothing decodes, and the last one alone while answers are written."""

import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
from host_gpus import FarGpus
from test_on_gpus import LONG, SHORT, Going, of_the_cpu, settings, submitted, text_of
from tiny import SHAPES, make_checkpoint

from localmoe.engine import activity
from localmoe.engine.activity import Activity
from localmoe.engine.engine import Engine
from localmoe.engine.gpu_program import Streams
from localmoe.engine.plan import on_gpus as planning
from localmoe.engine.plan_json import plan_json
from localmoe.errors import DeviceLostError, LocalmoeError
from localmoe.events import Failed
from localmoe.kernels.ops import Segment

OTHER = "ten nine eight seven six five four three two one " * 8
LONG_ONES = [f"{n} {LONG}" for n in range(5)]  # which have no beginning in common that is kept
BOTH = {"GPU 0", "GPU 1"}
PATIENCE_S = 10.0  # for a step that comes, however busy the machine is
SAME = 1e-3  # of the largest logit: latents are BF16


class InjectedError(LocalmoeError):
    """A fault of a test."""


@pytest.fixture(params=["v3", "moonlight"])
def folder(request, tmp_path):
    return str(make_checkpoint(tmp_path / "model", **SHAPES[request.param]))


class Two:
    """An engine on two host devices with pages of their own, and what its reader does."""

    def __init__(self, folder):
        self.host = FarGpus()
        self.engine = Engine.open(folder, settings("dslp"), gpus=self.host)
        self.plan = self.engine._opened.plan
        self.network = self.engine._opened.network
        self.reader = self.engine._loop.reader._program
        self.streams = self.reader._streams

    def answer(self, text, *, while_decoding=False, **options):
        """The text, and the devices whose spans the prompt has."""
        with self.decoding() if while_decoding else self.quiet():
            found = text_of(submitted(self.engine, text, **options))
        assert self.reader._running in (self.streams.together, self.streams.alone)
        return found, {span.device for span in self.reader._running.spans}

    @contextmanager
    def decoding(self):
        with self.network._activity.step():
            yield

    @contextmanager
    def quiet(self):
        """The answer before is over for good."""
        self.network._activity._ended_s = float("-inf")
        yield

    def assert_free(self):
        for pipeline in (self.streams.together, self.streams.alone):
            assert pipeline.free_slots == tuple(lane.ring.num_slots for lane in pipeline._lanes)


@pytest.fixture
def two(folder, with_gpus):
    with_gpus(2)
    found = Two(folder)
    yield found
    found.engine.close()
    assert not found.host.locked and all(device.free_bytes == device.capacity for device in found.host.devices)


def test_a_long_prompt_is_read_by_the_last_gpu_while_answers_are_written(two, folder):
    truth = of_the_cpu(folder, [LONG])[0]
    blobs = two.network._source._layers
    routed = sum(part.blob.nbytes for layer in blobs for part in layer.parts)
    found, devices = two.answer(LONG, while_decoding=True)
    assert found == truth and devices == {"GPU 1"}
    assert two.reader._running is two.streams.alone
    (loaded,) = two.streams.alone.loaded_bytes
    assert routed / 2 < loaded <= routed  # of the last layer those that one token chose
    loads = {span.device for span in two.reader.recorded.all() if span.stage == "load"}
    assert loads == {"GPU 1"} and two.streams.together.loaded_bytes == (0, 0)
    moved = {span.stage for span in two.reader.recorded.all()}
    assert "unload" in moved  # latents, to the first one's pages


def test_the_ways_take_turns_without_anything_new_on_the_devices(two, folder):
    truth = of_the_cpu(folder, LONG_ONES)
    before = [device.free_bytes for device in two.host.devices]
    weights = two.network._source.blobs(0, 0, 1)[0].ctypes.data
    locked = dict(two.host.locked)
    for device in two.host.devices:
        device.alloc = None  # nobody may
    for n, alone in enumerate((False, True, False, True, False)):
        found, devices = two.answer(LONG_ONES[n], while_decoding=alone, session=f"s{n}")
        assert found == truth[n] and devices == ({"GPU 1"} if alone else BOTH)
        assert [device.free_bytes for device in two.host.devices] == before
    assert two.host.locked == locked and two.network._source.blobs(0, 0, 1)[0].ctypes.data == weights
    for device in two.host.devices:
        del device.alloc


def test_both_ways_go_through_the_same_slots(two):
    (alone,), (first, last) = two.streams.alone._lanes, two.streams.together._lanes
    assert alone.ring.memory is last.ring.memory and alone.ring.num_slots >= 2
    starts = [lane.ring._slots[0].view.ctypes.data for lane in (alone, last)]
    assert starts[0] == starts[1] != first.ring._slots[0].view.ctypes.data
    sizes = [device.capacity - device.free_bytes for device in two.host.devices]
    assert sizes[0] - len(two.reader._mixed._memory.view if two.reader._mixed else ()) == sizes[1]
    assert sizes[1] == len(last.ring.memory.view)


@pytest.fixture
def patient(monkeypatch):
    """Steps count as one answer's however busy the machine is."""
    monkeypatch.setattr(activity, "NEXT_S", PATIENCE_S)
    monkeypatch.setattr(activity, "RECENT_S", PATIENCE_S)


def logits_of(network, ids, cuts, programs, contexts):
    """Of the last token of each cut, in one session; `programs` and `contexts` have one for each."""
    table, start, found = network.cache.new_table(), 0, []
    for count, program, context in zip(cuts, programs, contexts, strict=True):
        table.reserve(start + count)
        with context():
            found.append(program.forward(ids[start : start + count], [Segment(table, start, count)]))
        start += count
    table.release()
    return np.concatenate(found)


def noting(ways):
    """Streams.choose, which adds to `ways` whether one reads alone."""
    choose = Streams.choose

    def noted(streams, num_tokens):
        chosen = choose(streams, num_tokens)
        ways.append(chosen is streams.alone)
        return chosen

    return noted


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False), (True, True, True)])
def test_a_session_goes_on_wherever_its_prompts_were_read(tmp_path, with_gpus, monkeypatch, order):
    """Prompts and steps in turn: whoever reads next is brought what steps, and the other way, have written."""
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    cuts = [70, 1, 1, 90, 1, 1, 130, 1, 1]
    ids = np.random.default_rng(7).integers(3, 250, sum(cuts)).astype(np.int32)
    whole = Engine.open(folder, settings("cpu"))
    reader, steps = whole._loop.reader._program, whole._loop.runner._program
    try:
        programs = [reader if count > 1 else steps for count in cuts]
        truth = logits_of(whole._opened.network, ids, cuts, programs, [nullcontext] * len(cuts))
    finally:
        whole.close()
    with_gpus(2)
    two = Two(folder)
    try:
        contexts = [c for alone in order for c in (two.decoding if alone else two.quiet, nullcontext, nullcontext)]
        ways, steps = [], two.engine._loop.runner._program
        programs = [two.reader if count > 1 else steps for count in cuts]
        monkeypatch.setattr(Streams, "choose", noting(ways))
        ours = logits_of(two.network, ids, cuts, programs, contexts)
        assert ways == list(order)
    finally:
        two.engine.close()
    assert np.abs(ours - truth).max() <= SAME * np.abs(truth).max()
    assert (ours.argmax(axis=1) == truth.argmax(axis=1)).all()


def test_an_answer_that_goes_on_sends_the_prompt_to_the_last_gpu(two, folder, patient):
    """Steps themselves say that they run; the answer beside the prompt is what it is alone."""
    text = LONG[:180]  # there are pages for both
    truth = of_the_cpu(folder, [text])[0]
    two.host.devices[0]._probe = lambda kind: time.sleep(2e-3)  # so that the answer lasts
    going = Going(two.engine)
    assert text_of(submitted(two.engine, text, session="long")) == truth
    assert two.reader._running is two.streams.alone
    two.host.devices[0]._probe = lambda kind: None
    beside = going.stopped()
    alone = text_of(submitted(two.engine, "Go on.", 400, session="alone"))
    assert alone.startswith(beside) and len(beside) > 0


def test_a_prompt_right_after_an_answer_is_read_by_both(two, folder):
    text_of(submitted(two.engine, SHORT, session="short"))
    assert text_of(submitted(two.engine, LONG)) == of_the_cpu(folder, [LONG])[0]
    assert two.reader._running is two.streams.together


def test_a_prompt_that_one_gpu_has_no_room_for_is_read_by_both(folder, with_gpus, monkeypatch):
    plan_alone = planning.plan_alone
    monkeypatch.setattr(planning, "plan_alone", lambda *args: replace(plan_alone(*args), tokens=240))
    with_gpus(2)
    two = Two(folder)
    try:
        assert two.streams.alone.max_tokens == two.plan.alone_tokens == 240
        two.reader.streamed_from = 60
        texts = LONG, OTHER[:200]
        for text, truly, devices in zip(texts, of_the_cpu(folder, texts), (BOTH, {"GPU 1"}), strict=True):
            assert two.answer(text, while_decoding=True) == (truly, devices)
    finally:
        two.engine.close()


def test_without_room_for_one_alone_there_is_no_second_pipeline(tmp_path, with_gpus, monkeypatch):
    monkeypatch.setattr(planning, "plan_alone", lambda *args: None)
    with_gpus(2)
    two = Two(str(make_checkpoint(tmp_path / "model", **SHAPES["v3"])))
    try:
        assert two.plan.alone_tokens is None and two.streams.alone is None
        assert two.answer(LONG, while_decoding=True)[1] == BOTH
    finally:
        two.engine.close()


def test_a_plan_says_when_one_gpu_reads_alone(two):
    told = plan_json(two.engine.info)
    assert told["alone_tokens"] == two.plan.alone_tokens == two.streams.alone.max_tokens == two.plan.pass_tokens
    assert any(why.startswith("beside answers: GPU 1 reads long prompts") for why in told["decisions"])


def on_load(device, then):
    """`then` happens when experts are next copied there."""
    probe = device._probe

    def begins(kind):
        if kind == "copy":
            device._probe = probe
            then()

    device._probe = begins


def both_ways_answer(two, truth):
    two.assert_free()
    for n, alone in enumerate((True, False, True)):
        found, devices = two.answer(LONG_ONES[n], while_decoding=alone, session=f"again {n}")
        assert found == truth[n] and devices == ({"GPU 1"} if alone else BOTH)


@pytest.mark.parametrize("alone", [True, False])
def test_a_prompt_that_is_stopped_leaves_either_way_free(two, folder, alone):
    truth = of_the_cpu(folder, LONG_ONES[:3])
    come, stopped = threading.Event(), threading.Event()
    on_load(two.host.devices[1], lambda: (come.set(), stopped.wait(30)))
    with two.decoding() if alone else two.quiet():
        stream = submitted(two.engine, LONG, session="stopped")
        assert come.wait(30)
        stream.cancel()
        assert list(stream.events())[-1].reason == "cancelled"
        stopped.set()
    assert two.reader._running is (two.streams.alone if alone else two.streams.together)
    both_ways_answer(two, truth)


@pytest.mark.parametrize("alone", [True, False])
def test_a_load_that_fails_leaves_either_way_free(two, folder, alone):
    def fail():
        raise InjectedError("a fault of a test.")

    truth = of_the_cpu(folder, LONG_ONES[:3])
    on_load(two.host.devices[1], fail)
    with two.decoding() if alone else two.quiet():
        events = list(submitted(two.engine, LONG, session="failed").events())
    assert [e.message for e in events if isinstance(e, Failed)] == ["a fault of a test."]
    assert two.reader._running is (two.streams.alone if alone else two.streams.together)
    both_ways_answer(two, truth)


def test_a_gpu_that_is_lost_ends_the_prompt_and_no_answer(two, folder):
    truth = of_the_cpu(folder, [SHORT])[0]
    going = Going(two.engine)
    on_load(two.host.devices[1], lambda: two.host.devices[1].lose("a test pulled it out"))
    for n in range(2):
        with two.decoding() if n == 0 else two.quiet():
            events = list(submitted(two.engine, LONG, session="lost").events())
        assert "pulled it out" in next(e.message for e in events if isinstance(e, Failed))
        two.assert_free()
    assert isinstance(two.host.devices[1].failure, DeviceLostError)
    assert going.stopped() and text_of(submitted(two.engine, SHORT, session="short")) == truth


def test_one_gpu_never_reads_alone_what_it_reads_anyway(tmp_path, with_gpus):
    with_gpus(1)
    engine = Engine.open(str(make_checkpoint(tmp_path / "model", **SHAPES["v3"])), settings("slp"), gpus=FarGpus())
    engine.close()
    plan = engine._opened.plan
    assert plan.alone_tokens is None and engine._loop.reader._program._streams.alone is None
    assert not any(why.startswith("beside answers") for why in plan.reasons)


def test_activity_goes_on_from_step_to_step(monkeypatch):
    steps = Activity()
    assert not steps.goes_on()
    with steps.step():
        assert steps.goes_on()
    start_s = time.monotonic()
    assert not steps.goes_on() and time.monotonic() - start_s >= activity.NEXT_S / 2
    monkeypatch.setattr(activity, "NEXT_S", PATIENCE_S)
    begins = steps.step()
    threading.Timer(5e-3, begins.__enter__).start()
    assert steps.goes_on()


def test_an_answer_begins_with_its_prompts_end(patient):
    steps = Activity()
    steps.prompt_ended()
    first = steps.step()
    threading.Timer(5e-3, first.__enter__).start()
    assert steps.goes_on()


def test_a_prompt_that_waits_for_another_is_read_beside_its_answer(two, patient, monkeypatch):
    """By the last GPU alone, though no step has begun when its turn comes."""
    ways = []
    monkeypatch.setattr(Streams, "choose", noting(ways))
    streams = [submitted(two.engine, text[:180], 40, session=text) for text in (LONG, OTHER)]
    assert all(text_of(stream) for stream in streams)
    assert ways == [False, True]


def test_a_step_that_failed_goes_on_no_more(monkeypatch):
    steps = Activity()
    with pytest.raises(InjectedError), steps.step():
        raise InjectedError("a step")
    assert not steps.goes_on()
    steps._ended_s -= activity.RECENT_S
    monkeypatch.setattr(activity, "NEXT_S", PATIENCE_S)
    start_s = time.monotonic()
    assert not steps.goes_on() and time.monotonic() - start_s < PATIENCE_S / 2  # nobody waits

"""Plans with GPUs, on host devices: a short prompt is answered while a long one's run goes on there."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from host_gpus import FarGpus
from planned import GPU_RATES, SLOW, measured
from test_on_gpus import LONG as WHOLE
from test_on_gpus import MEDIUM, SHORT, of_the_cpu, settings, submitted, text_of
from test_two_gpus import InjectedError
from tiny import SHAPES, make_checkpoint

from localmoe.chat.message import Conversation, Message
from localmoe.engine.engine import Engine
from localmoe.engine.plan.passing import SCRATCH
from localmoe.engine.plan_json import plan_json
from localmoe.events import Failed, Finished
from localmoe.kernels.segments import SegmentProgram
from localmoe.prefill.mixed import Mixed
from localmoe.prefill.pipeline import Pipeline

WAIT_S = 30.0  # however busy the machine is
LONG, OTHER = WHOLE[:310], "one two four"  # so that there are pages for both
# So slow that what a layer costs beside its arithmetic counts little: then short prompts are worth passing with.
SLOWER = replace(
    SLOW,
    cpu=replace(SLOW.cpu, fma=measured(2e9), stream=measured(2e9)),
    gpus=(replace(GPU_RATES, h2d=measured(1e7)),) * 2,
)


class Held:
    """Where a device, or one of its streams, begins what comes next of one kind: it goes on when it is released."""

    def __init__(self, where, kind, then=lambda: None):
        self._come, self._released = threading.Event(), threading.Event()
        probe = where._probe

        def hold(begun):
            if begun != kind:
                return probe(begun)
            where._probe = probe
            self._come.set()
            assert self._released.wait(WAIT_S)
            return then()

        where._probe = hold

    def wait(self):
        assert self._come.wait(WAIT_S)

    def release(self):
        self._released.set()


class Passed:
    """An engine with a long prompt whose experts are held on their way to the last device."""

    def __init__(self, folder, plan):
        self.folder, self.host = folder, FarGpus()
        self.engine = Engine.open(folder, settings(plan), gpus=self.host)
        self.network, self.loop = self.engine._opened.network, self.engine._loop
        self.plan, self.passing = self.engine._opened.plan, self.loop.passer._program
        self.held = None

    def hold_long(self, text=LONG, then=lambda: None):
        self.held = Held(self.host.devices[-1], "copy", then)
        self.long = submitted(self.engine, text, session="long")
        self.held.wait()

    @contextmanager
    def short_held(self, then=lambda: None):
        """A short prompt, in the middle of being read, goes on when the block ends."""
        held = Held(self.passing._running._stream, "peer", then)
        short = submitted(self.engine, SHORT, session="short")
        held.wait()
        assert any(run.flag is self.loop.passer.flag for run in self.loop._roster.running)
        try:
            yield short
        finally:
            held.release()

    def assert_usable(self):
        assert answers(self.engine, [OTHER, LONG[::-1]]) == of_the_cpu(self.folder, [OTHER, LONG[::-1]])

    def close(self):
        if self.held:
            self.held.release()
        self.engine.close()
        assert all(device.free_bytes == device.capacity for device in self.host.devices)


def answers(engine, texts):
    return [text_of(submitted(engine, text, session=text[:20])) for text in texts]


def end_of(stream):
    return list(stream.events())[-1]


def fail():
    raise InjectedError("a fault of a test.")


@pytest.fixture(params=[("slp", 1), ("dslp", 2)], ids=["one", "two"])
def passed(request, tmp_path, with_gpus):
    plan, count = request.param
    with_gpus(count, SLOWER)
    found = Passed(str(make_checkpoint(tmp_path / "model", **SHAPES["v3"])), plan)
    yield found
    found.close()


def test_a_short_prompt_is_answered_while_a_long_one_is_streamed(passed):
    """Neither shows in the other's answer, and nothing more is taken of any device."""
    truth = of_the_cpu(passed.folder, [LONG, SHORT, OTHER])
    free = [device.free_bytes for device in passed.host.devices]
    passed.hold_long()
    assert answers(passed.engine, [SHORT, OTHER]) == truth[1:] and not passed.long.ended
    assert passed.passing.recorded.all() and isinstance(passed.loop.reader._program._running, Pipeline)
    assert [device.free_bytes for device in passed.host.devices] == free
    passed.held.release()
    assert text_of(passed.long) == truth[0]


def test_a_short_prompt_is_answered_while_a_medium_one_is_shared_with_the_cpu(tmp_path, with_gpus):
    with_gpus(1, SLOWER)
    passed = Passed(str(make_checkpoint(tmp_path / "model", **SHAPES["v3"])), "slp")
    try:
        truth = of_the_cpu(passed.folder, [MEDIUM, SHORT])
        passed.hold_long(MEDIUM)
        assert answers(passed.engine, [SHORT]) == truth[1:] and not passed.long.ended
        assert isinstance(passed.loop.reader._program._running, Mixed)
        passed.held.release()
        assert text_of(passed.long) == truth[0]
    finally:
        passed.close()


def test_a_short_prompt_that_is_stopped_leaves_the_long_one(passed):
    passed.hold_long()
    with passed.short_held() as short:
        short.cancel()
    assert end_of(short).reason == "cancelled" and not passed.long.ended
    assert answers(passed.engine, [OTHER]) == of_the_cpu(passed.folder, [OTHER]) and not passed.long.ended
    passed.held.release()
    assert text_of(passed.long) == of_the_cpu(passed.folder, [LONG])[0]


def test_a_long_prompt_that_is_stopped_leaves_the_short_one(passed):
    passed.hold_long()
    with passed.short_held() as short:
        passed.long.cancel()
        passed.held.release()
        assert end_of(passed.long).reason == "cancelled"
    assert text_of(short) == of_the_cpu(passed.folder, [SHORT])[0]
    passed.assert_usable()


def test_a_stream_that_fails_leaves_the_short_prompt(passed):
    passed.hold_long(then=fail)
    with passed.short_held() as short:
        passed.held.release()
        assert end_of(passed.long).message == "a fault of a test."
    assert text_of(short) == of_the_cpu(passed.folder, [SHORT])[0]
    passed.assert_usable()


def test_a_short_prompt_that_fails_leaves_the_stream(passed):
    passed.hold_long()
    with passed.short_held(then=fail) as short:
        pass
    assert end_of(short).message == "a fault of a test."
    assert answers(passed.engine, [SHORT]) == of_the_cpu(passed.folder, [SHORT]) and not passed.long.ended
    passed.held.release()
    assert text_of(passed.long) == of_the_cpu(passed.folder, [LONG])[0]


def test_a_gpu_that_is_lost_ends_what_it_computes_and_nothing_else(passed):
    """Of two the last one is, which short prompts do without; the only one ends both, and the engine says so."""
    passed.hold_long()
    with passed.short_held() as short:
        passed.host.devices[-1].lose("a test pulled it out")
        passed.held.release()
        assert "pulled it out" in end_of(passed.long).message
    if len(passed.host.devices) > 1:
        assert text_of(short) == of_the_cpu(passed.folder, [SHORT])[0]
    else:
        assert "pulled it out" in end_of(short).message
    after = end_of(submitted(passed.engine, OTHER, session="after"))
    assert isinstance(after, Finished if len(passed.host.devices) > 1 else Failed)


def test_a_prompt_that_passes_counts_as_an_answer_that_goes_on(passed):
    """So the next long one leaves the first GPU to it, and to its answer's first step."""
    activity = passed.network._activity
    passed.hold_long()
    assert not activity.goes_on()
    with passed.short_held() as short:
        assert activity.goes_on()
    assert text_of(short)


def test_experts_that_prompts_choose_which_pass_are_seen(passed):
    passed.hold_long()
    before = passed.network._seen._num_tokens
    assert text_of(submitted(passed.engine, SHORT, 1))
    num_told = passed.network._seen._num_tokens - before
    assert num_told == passed.engine.count_tokens(Conversation((Message("user", SHORT),))) and not passed.long.ended


def test_who_passes_asks_for_the_gpu_where_streamed_prompts_stay_there(passed):
    askers = passed.network._askers
    assert bool(askers) == passed.plan.sharing.takes_turns == (passed.plan.kind == "slp")
    passed.hold_long()
    with passed.short_held() as short:
        if askers:
            assert not askers.wait((askers.steps.asked.value, askers.passing._count), 0.0)
        short.cancel()
    assert end_of(short).reason == "cancelled"
    if askers:
        assert askers.passing.asked.value > 0 and askers.wait(askers.requests, 0.0)


def test_scratch_for_it_is_counted_and_told(passed):
    plan, told = passed.plan, plan_json(passed.engine.info)
    assert told["passing_tokens"] == plan.passing_tokens == passed.passing.max_tokens >= 16
    assert [item["place"] for item in told["items"] if item["name"] == SCRATCH] == ["GPU 0"]
    programs = [passed.passing, passed.loop.runner._program, passed.loop.reader._program._beside]
    mine = [batch._mixtures.nbytes for program in programs for batch in beside_of(program)._batches]
    assert sum(mine) + passed.loop.reader._program._mixed._cpu.nbytes <= plan.memory["scratch"]


def beside_of(program):
    return getattr(program, "_plain", program)


def test_steps_go_first_then_who_passes_then_other_prompts(tmp_path, with_gpus, monkeypatch):
    """On the device by the streams' urgency, on the CPU by the order of bulk work."""
    early, urgencies = [], []
    go_early, beside = SegmentProgram.go_early, FarGpus.open

    def opened(gpus, found):
        devices = beside(gpus, found)
        new_stream = devices[0].new_stream

        def noted(name, **options):
            urgencies.append(options.get("urgency"))
            return new_stream(name, **options)

        devices[0].new_stream = noted
        return devices

    monkeypatch.setattr(FarGpus, "open", opened)
    monkeypatch.setattr(SegmentProgram, "go_early", lambda program: (early.append(program), go_early(program)))
    with_gpus(1, SLOWER)
    passed = Passed(str(make_checkpoint(tmp_path / "model", **SHAPES["v3"])), "slp")
    try:
        assert [batch._mixtures for batch in passed.passing._running._batches] == early
        assert urgencies.count("urgent") == urgencies.count("early") == 1
    finally:
        passed.close()

"""Plans with GPUs, from opening to the answer, on host devices that stand for them: the CPU plan's tokens."""

import time
from dataclasses import replace
from random import Random

import pytest
from host_gpus import HostGpus
from planned import GPU_RATES, SLOW, measured
from tiny import SHAPES, make_checkpoint

from localmoe.chat.message import Conversation, Message
from localmoe.engine import gpu_network, gpu_steps
from localmoe.engine.engine import Engine
from localmoe.engine.gpu_network import GpuNetwork
from localmoe.engine.plan_json import plan_json
from localmoe.engine.request import Request, Sampling
from localmoe.errors import OutOfMemoryError, UsageError, VerificationError
from localmoe.events import Failed, Finished, TextDelta
from localmoe.settings import Settings

LONG = "one two three four five six seven eight nine ten " * 8
SHORT = "one two three"
MEDIUM = "ten nine eight seven six five four three two one " * 2


@pytest.fixture(params=["v3", "moonlight"])
def folder(request, tmp_path):
    return str(make_checkpoint(tmp_path / "model", **SHAPES[request.param]))


def settings(plan):
    """With the latents of the plans with GPUs."""
    return Settings(context=512, plan=plan, cache_dtype="bf16", origins={"plan": "flag", "context": "flag"})


def answers(engine, texts=(LONG, SHORT)):
    """To a long prompt and a short one, one after the other."""
    return [text_of(submitted(engine, text)) for text in texts]


def submitted(engine, text, max_tokens=12, session="default"):
    request = Request(Conversation((Message("user", text),)), Sampling(temperature=0), max_tokens, session=session)
    return engine.submit(request)


def text_of(stream):
    events = list(stream.events())
    assert not [e for e in events if isinstance(e, Failed)], events
    assert any(isinstance(e, Finished) for e in events)
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def of_the_cpu(folder, texts):
    whole = Engine.open(folder, settings("cpu"))
    try:
        return answers(whole, texts)
    finally:
        whole.close()


def items_of(plan, place):
    return {item.name: item.num_bytes for item in plan.items if item.place == place}


@pytest.mark.parametrize(("plan", "count"), [("slp", 1), ("dslp", 2)])
def test_answers_are_those_of_the_cpu(folder, with_gpus, plan, count):
    whole = Engine.open(folder, settings("cpu"))
    try:
        truth = answers(whole)
    finally:
        whole.close()
    with_gpus(count)
    host = HostGpus()
    engine = Engine.open(folder, settings(plan), gpus=host)
    try:
        network, decided = engine._opened.network, engine._opened.plan
        assert isinstance(network, GpuNetwork) and decided.kind == plan and host.made == count
        reader = engine._loop.reader._program
        assert 20 < decided.crossover_tokens == reader.streamed_from < 350
        assert reader.max_tokens == decided.pass_tokens == 512
        assert answers(engine) == truth
        assert all(nbytes > 0 for nbytes in reader._streams.together.loaded_bytes)
        assert reader._running is reader._beside  # the short prompt was not streamed
        assert sum(host.locked.values()) >= network._network._store.nbytes
        assert any("page-locked" in line for line in engine.info.plan)
        assert f"plan: {plan}; chosen by --plan" in plan_json(engine.info)["decisions"]
    finally:
        engine.close()
    assert not host.locked and all(device.free_bytes == device.capacity for device in host.devices)


class Going:
    """An answer that has begun, and goes on for long, unless it is stopped."""

    def __init__(self, engine):
        self.stream = submitted(engine, "Go on.", 400, session="going")
        self._events = self.stream.events()
        self._text = next(e.text for e in self._events if isinstance(e, TextDelta))

    def stopped(self):
        """Its text until now."""
        self.stream.cancel()
        return self._text + "".join(e.text for e in self._events if isinstance(e, TextDelta))


def stopped_after(stream, pause_s):
    """Why it ended."""
    time.sleep(pause_s)
    stream.cancel()
    return list(stream.events())[-1].reason


def assert_stopped(ends):
    """Where the machine is busy elsewhere an answer may end before its stop comes, but not all do."""
    assert set(ends) <= {"cancelled", "length"} and "cancelled" in ends, ends


def overlap_s(some, others):
    """Seconds in which spans of both run."""
    return sum(max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s)) for a in some for b in others)


@pytest.mark.parametrize(("plan", "count"), [("slp", 1), ("dslp", 2)])
def test_prompts_are_read_while_answers_are_made(folder, with_gpus, plan, count):
    texts = (SHORT, MEDIUM, LONG)
    truth = of_the_cpu(folder, texts)
    with_gpus(count)
    engine = Engine.open(folder, settings(plan), gpus=HostGpus())
    try:
        reader, runner = engine._loop.reader._program, engine._loop.runner._program
        going = []
        for text, truly in zip(texts, truth, strict=True):
            other = Going(engine)
            assert text_of(submitted(engine, text, session=text[:9])) == truly
            going.append(other.stopped())
        assert overlap_s(reader.recorded.all(), runner.recorded.all()) > 0
        alone = text_of(submitted(engine, "Go on.", 400, session="alone"))
        assert all(alone.startswith(text) for text in going)
    finally:
        engine.close()


def test_a_prompt_that_is_stopped_leaves_the_answers_beside_it(folder, with_gpus):
    with_gpus(1)
    host = HostGpus()
    engine = Engine.open(folder, settings("slp"), gpus=host)
    try:
        going = Going(engine)
        free = host.devices[0].free_bytes
        ends = [stopped_after(submitted(engine, LONG, 100, "stopped"), s) for s in (0.0, 0.002, 0.01, 0.03)]
        assert_stopped(ends)
        assert going.stopped() and host.devices[0].free_bytes == free
        assert text_of(submitted(engine, SHORT)) == of_the_cpu(folder, [SHORT])[0]
    finally:
        engine.close()


@pytest.mark.parametrize(("plan", "count"), [("slp", 1), ("dslp", 2)])
@pytest.mark.parametrize("seed", range(2))
def test_many_at_once_answer_as_each_does_alone_on_the_cpu(tmp_path, with_gpus, plan, count, seed):
    folder, random = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"])), Random(seed)
    texts = [LONG[: random.randrange(10, len(LONG))] + str(n) for n in range(8)]
    truth = of_the_cpu(folder, texts)
    with_gpus(count)
    host = HostGpus()
    engine = Engine.open(folder, settings(plan), gpus=host)
    try:
        streams, ends = [], []
        for n, text in enumerate(texts):
            streams.append(submitted(engine, text, session=f"s{n}"))
            stopped = submitted(engine, LONG + str(n), 100, session=f"stopped {n}")
            ends.append(stopped_after(stopped, random.uniform(0, 0.05)))
        assert_stopped(ends)
        assert [text_of(stream) for stream in streams] == truth
    finally:
        engine.close()
    assert all(device.free_bytes == device.capacity for device in host.devices)


def test_medium_prompts_are_shared_with_the_gpu(folder, with_gpus):
    truth = of_the_cpu(folder, [SHORT, MEDIUM, LONG])
    with_gpus(1)
    engine = Engine.open(folder, settings("slp"), gpus=HostGpus())
    try:
        reader, plan = engine._loop.reader._program, engine._opened.plan
        first, end = plan.sharing.mixed_from, plan.crossover_tokens - 1
        assert any(
            f"on GPU 0 and the CPU from {first} tokens to {end}; an expert of many" in why for why in plan.reasons
        )
        found, ways = [], []
        for text in (SHORT, MEDIUM, LONG):
            found += answers(engine, [text])
            ways.append(reader._running)
        assert found == truth and ways == [reader._beside, reader._mixed, reader._streams.together]
        assert reader._mixed.moved_bytes > 0 and reader._beside.max_tokens == first - 1
    finally:
        engine.close()


def test_experts_that_are_chosen_most_stay_on_the_gpu(folder, with_gpus, monkeypatch):
    monkeypatch.setattr(gpu_steps, "FROZEN_AFTER", 150)
    texts = [SHORT, LONG, SHORT, MEDIUM]
    truth = of_the_cpu(folder, texts)
    with_gpus(1)
    host = HostGpus()
    engine = Engine.open(folder, settings("slp"), gpus=host)
    try:
        steps, plan = engine._loop.runner._program, engine._opened.plan
        assert answers(engine, texts[:1]) == truth[:1] and not steps.hot_bytes  # too few tokens were seen
        before = host.devices[0].free_bytes
        assert answers(engine, texts[1:]) == truth[1:]
        assert steps.hot_bytes == before - host.devices[0].free_bytes > 0
        assert 0 < steps._hot.num_experts <= plan.sharing.num_hot
        assert any(span.device == "GPU 0" and span.stage == "experts" for span in steps.recorded.all())
    finally:
        engine.close()
    assert all(device.free_bytes == device.capacity for device in host.devices)


def test_what_lies_on_the_gpu_and_beside_it_is_what_the_plan_has_counted(folder, with_gpus, monkeypatch):
    monkeypatch.setattr(gpu_steps, "FROZEN_AFTER", 150)
    with_gpus(1)
    host = HostGpus()
    engine = Engine.open(folder, settings("slp"), gpus=host)
    try:
        answers(engine)
        plan, reader, steps = engine._opened.plan, engine._loop.reader._program, engine._loop.runner._program
        vram = items_of(plan, "GPU 0")
        (device,) = host.devices
        slots, hot = len(reader._mixed._memory.view), steps.hot_bytes
        assert slots == pytest.approx(vram["slots of shared experts"], rel=0.01)
        each = hot / steps._hot.num_experts
        assert each * plan.sharing.num_hot == pytest.approx(vram["hot experts"], rel=0.01)
        assert device.capacity - device.free_bytes - slots - hot == pytest.approx(vram["ring"], rel=0.01)
        besides = [reader._beside, steps._plain, steps._running]
        mine = [batch._mixtures.nbytes for beside in besides for batch in beside._batches]
        assert sum(mine) + reader._mixed._cpu.nbytes <= plan.memory["scratch"]
    finally:
        engine.close()


class Always:
    """An alternation that never asks."""

    def add(self, num_tokens, times):
        pass

    def pays(self, num_tokens):
        return True


def test_steps_of_two_conversations_alternate_where_rates_say_so(tmp_path, with_gpus, monkeypatch):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    monkeypatch.setattr(gpu_network, "Measured", Always)
    slow = replace(GPU_RATES, h2d=measured(3e8), layer=measured(1e-9), attention=measured(3e9), memory=measured(1e15))
    with_gpus(1, replace(SLOW, gpus=(slow,)))
    engine = Engine.open(folder, settings("slp"), gpus=HostGpus())
    try:
        plan, steps = engine._opened.plan, engine._loop.runner._program
        assert plan.sharing.alternates and len(steps._plain._batches) == 2
        assert any(why.startswith("batches of a step: two, once steps were measured") for why in plan.reasons)
        together, cuts = [], steps._plain._cuts
        monkeypatch.setattr(
            steps._plain, "_cuts", lambda segments: together.append(len(cuts(segments))) or cuts(segments)
        )
        streams = [submitted(engine, text, 40, session=text) for text in (SHORT, MEDIUM)]
        found = [text_of(stream) for stream in streams]
        assert 2 in together
        alone = [text_of(submitted(engine, text, 40)) for text in (SHORT, MEDIUM)]
        assert found == alone
    finally:
        engine.close()


def test_one_batch_takes_no_second_ones_memory(tmp_path, with_gpus):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    quick = replace(GPU_RATES, h2d=measured(3e8), layer=measured(1e-9), attention=measured(1e15), memory=measured(1e15))
    with_gpus(1, replace(SLOW, gpus=(quick,)))
    engine = Engine.open(folder, settings("slp"), gpus=HostGpus())
    engine.close()
    assert not engine._opened.plan.sharing.alternates
    assert len(engine._loop.runner._program._plain._batches) == 1


@pytest.mark.parametrize("link", [3e8, 1e5])
def test_a_prompt_that_is_not_streamed_is_read_in_pieces(tmp_path, with_gpus, link):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    asked = replace(settings("slp"), prefill_chunk=48, origins={**settings("slp").origins, "prefill_chunk": "flag"})
    with_gpus(1, replace(SLOW, gpus=(replace(GPU_RATES, h2d=measured(link)),)))
    engine = Engine.open(folder, asked, gpus=HostGpus())
    try:
        program = engine._loop.reader._program
        program.streamed_from = 10**6
        found = answers(engine)
        assert program._pieces[1] == 1
        is_shared = link > 1e6
        assert (program._mixed is not None) == is_shared
        assert (program._mixed if is_shared else program._beside).max_tokens == 48
    finally:
        engine.close()
    whole = Engine.open(folder, settings("cpu"))
    try:
        assert found == answers(whole)
    finally:
        whole.close()


def test_the_plan_is_chosen_where_it_is_the_fastest(tmp_path, with_gpus):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    with_gpus(1, replace(SLOW, gpus=(GPU_RATES,), cpu=replace(SLOW.cpu, fma=measured(1e8), stream=measured(1e8))))
    engine = Engine.open(folder, replace(settings("auto"), origins={"context": "flag"}), gpus=HostGpus())
    engine.close()
    assert engine._opened.plan.kind == "slp"
    assert "predicted for a prompt" in str(engine._opened.plan.decisions[0])
    refused = Engine.open(folder, replace(settings("auto"), origins={}), gpus=HostGpus(why="no CUDA in this torch"))
    refused.close()
    assert str(refused._opened.plan.decisions[0]) == "plan: cpu; the GPU cannot be used: no CUDA in this torch"


def test_what_a_gpu_lacks_is_told_by_line_item_before_anything_is_put_there(tmp_path, with_gpus):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    with_gpus(1)
    host = HostGpus(capacity=1 << 20)
    with pytest.raises(
        OutOfMemoryError, match=r"the plan needs .* GB on GPU 0 .*latent cache.*ring.*workspace"
    ) as said:
        Engine.open(folder, settings("slp"), gpus=host)
    assert "--plan cpu" in said.value.hint and not host.made and not host.locked


def test_without_a_gpu_the_plan_says_why(tmp_path):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    with pytest.raises(UsageError, match="the plan slp needs a GPU"):
        Engine.open(folder, settings("slp"), gpus=HostGpus())


def test_bytes_that_change_on_their_way_are_found(tmp_path, with_gpus):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    with_gpus(1)
    host = HostGpus()
    open_devices = host.open

    def with_a_bad_link(found):
        (device,) = open_devices(found)
        new_stream = device.new_stream

        def bad(name):
            stream = new_stream(name)
            copy = stream.copy_async
            stream.copy_async = lambda target, source: (copy(target, source), stream.launch(lambda: target.fill(7)))
            return stream

        device.new_stream = bad
        return [device]

    host.open = with_a_bad_link
    with pytest.raises(VerificationError, match="copied to GPU 0 and back are not the same"):
        Engine.open(folder, settings("slp"), gpus=host)

"""A model that does not fit into memory, from opening to its answer: the same tokens as with all of it in memory."""

from dataclasses import replace
from pathlib import Path

import pytest
from planned import RATES
from tiny import SHAPES, make_checkpoint

from localmoe.chat.message import Conversation, Message
from localmoe.engine import opening
from localmoe.engine.disk_network import DiskNetwork
from localmoe.engine.engine import Engine
from localmoe.engine.plan import make, make_plan
from localmoe.engine.request import Request, Sampling
from localmoe.errors import OutOfMemoryError
from localmoe.events import Failed, Finished, Lanes, TextDelta
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expert_prefixes
from localmoe.settings import Settings
from localmoe.weights.layout import expert_of

TEXT = "one two three four five six seven eight nine ten " * 6
SETTINGS = Settings(
    context=512, prefill_chunk=96, plan="disk", origins={"plan": "flag", "prefill_chunk": "flag", "context": "flag"}
)


@pytest.fixture(params=["v3", "moonlight"])
def folder(request, tmp_path):
    return str(make_checkpoint(tmp_path / "model", **SHAPES[request.param]))


@pytest.fixture
def small_memory(monkeypatch):
    """Memory for about half of the experts."""
    monkeypatch.setattr(opening, "_rates", lambda machine: RATES)

    def plan_with(machine, config, settings, rates, **kwargs):
        low, high = 0, 64 << 30
        for _ in range(60):
            middle = (low + high) // 2
            monkeypatch.setattr(make, "dram_for", lambda machine, nbytes, given=middle: given)
            try:
                plan = make_plan(machine, config, settings, rates, **kwargs)
            except OutOfMemoryError:
                low = middle
                continue
            share = plan.placement.resident_share
            if 0.3 < share < 0.7:
                return plan
            keeps_too_few = share <= 0.3 and not any("would fit" in why for why in plan.reasons)
            low, high = (middle, high) if keeps_too_few else (low, middle)
        raise AssertionError("no size of memory holds half of the experts")

    monkeypatch.setattr(opening, "make_plan", plan_with)


def answer(engine):
    conversation = Conversation((Message("user", TEXT),))
    events = list(engine.submit(Request(conversation, Sampling(temperature=0), max_tokens=12)).events())
    assert not [e for e in events if isinstance(e, Failed)], events
    assert any(isinstance(e, Finished) for e in events)
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def passing_bytes(folder):
    """Of all experts but the last layer's, of which only the chosen ones pass, as they lie in the checkpoint."""
    checkpoint = Checkpoint.open(Path(folder))
    last = expert_prefixes(read_config(checkpoint.config))[-1]
    found = [(t.nbytes, expert_of(t.name)) for t in checkpoint.tensors.values()]
    return sum(n for n, e in found if e and e[0] != last)


def test_lanes_tell_what_was_loaded_and_computed(folder, small_memory):
    engine = Engine.open(folder, SETTINGS)
    try:
        one_chunk = Conversation((Message("user", TEXT[:50]),))
        request = Request(one_chunk, Sampling(temperature=0), max_tokens=1)
        told = [e for e in engine.submit(request).events() if isinstance(e, Lanes)]
        network, pipeline = engine._opened.network, engine._loop.reader._program._pipeline  # nothing rests yet
        load, compute = told[-1].lanes
        assert (load.stage, compute.stage) == ("load", "compute")
        assert load.num_bytes == pipeline.loaded_bytes[0] >= passing_bytes(folder) > 0
        spans = [s for s in pipeline.spans if s.stage == "load"]
        assert len(load.spans) <= len(spans)
        assert load.busy_s == pytest.approx(sum(s.busy_s for s in load.spans), abs=1e-4)
        assert min(s.start_s for s in spans) == pytest.approx(told[-1].clock_s + load.spans[0].start_s, abs=1e-4)
        assert told[-1].layer == told[-1].num_layers == network.config.num_layers
        assert 0 < told[-1].overlap <= 1
        again = list(engine.submit(request).events())  # all but one token are in the cache: read when needed
        reads = [e for e in again if isinstance(e, Lanes)][-1].lanes[0]
        assert reads.num_bytes - load.num_bytes == engine._loop.reader._program._on_demand.read_bytes > 0
    finally:
        engine.close()


def test_answers_are_those_of_the_model_in_memory(folder, small_memory, monkeypatch):
    engine = Engine.open(folder, SETTINGS)
    try:
        network = engine._opened.network
        assert isinstance(network, DiskNetwork)
        share = engine._opened.plan.placement.resident_share
        layers = range(network.config.num_moe_layers)
        resident = sum(network._source.num_rows(n) for n in layers)
        assert resident == int(share * len(layers) * network.config.num_experts + 1e-9) > 0
        items = {item.name: item.num_bytes for item in engine._opened.plan.items}
        programs = network._programs
        assert network.slot_bytes == pytest.approx(items["ring"], rel=0.03)
        assert sum(program.nbytes for program in programs) == pytest.approx(items["scratch"], rel=0.03)
        found = answer(engine)
        assert engine._loop.runner._program._on_demand.free_slots > 0
    finally:
        engine.close()
    monkeypatch.undo()
    whole = Engine.open(folder, replace(SETTINGS, plan="cpu"))
    try:
        assert found == answer(whole)
    finally:
        whole.close()


def test_forced_where_all_fits_every_expert_comes_from_disk(tmp_path):
    folder = str(make_checkpoint(tmp_path / "model", **SHAPES["v3"]))
    engine = Engine.open(folder, SETTINGS)
    try:
        assert isinstance(engine._opened.network, DiskNetwork)
        assert any("all of it would fit into memory: asked for by --plan" in line for line in engine.info.plan)
        found = answer(engine)
        assert engine._loop.runner._program._on_demand.read_bytes > 0  # by the last step, too
        pipeline = engine._loop.reader._program._pipeline
        assert pipeline.loaded_bytes[0] > 0
    finally:
        engine.close()
    whole = Engine.open(folder, replace(SETTINGS, plan="cpu"))
    try:
        assert found == answer(whole)
    finally:
        whole.close()

"""A model that does not fit into memory, from opening to its answer: the same tokens as with all of it in memory."""

from dataclasses import replace

import pytest
from planned import RATES
from tiny import SHAPES, make_checkpoint

from localmoe.chat.message import Conversation, Message
from localmoe.engine import opening
from localmoe.engine.disk_network import DiskNetwork
from localmoe.engine.engine import Engine
from localmoe.engine.plan import make, make_plan
from localmoe.engine.request import Request, Sampling
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.events import Failed, Finished, TextDelta
from localmoe.settings import Settings

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
            except UsageError:  # all of it fits
                high = middle
                continue
            except OutOfMemoryError:
                low = middle
                continue
            if 0.3 < plan.placement.resident_share < 0.7:
                return plan
            low, high = (middle, high) if plan.placement.resident_share <= 0.3 else (low, middle)
        raise AssertionError("no size of memory holds half of the experts")

    monkeypatch.setattr(opening, "make_plan", plan_with)


def answer(engine):
    conversation = Conversation((Message("user", TEXT),))
    events = list(engine.submit(Request(conversation, Sampling(temperature=0), max_tokens=12)).events())
    assert not [e for e in events if isinstance(e, Failed)], events
    assert any(isinstance(e, Finished) for e in events)
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def test_answers_are_those_of_the_model_in_memory(folder, small_memory, monkeypatch):
    engine = Engine.open(folder, SETTINGS)
    try:
        network = engine._opened.network
        assert isinstance(network, DiskNetwork)
        share = engine._opened.plan.placement.resident_share
        layers = range(network.config.num_moe_layers)
        resident = sum(network._source.num_resident(n) for n in layers)
        assert resident == int(share * len(layers) * network.config.num_experts + 1e-9) > 0
        items = {item.name: item.num_bytes for item in engine._opened.plan.items}
        programs = network._programs
        assert network.slot_bytes == pytest.approx(items["ring"], rel=0.03)
        assert sum(program.nbytes for program in programs) == pytest.approx(items["scratch"], rel=0.03)
        found = answer(engine)
        assert engine._loop._runner._program._on_demand.free_slots > 0
    finally:
        engine.close()
    monkeypatch.undo()
    whole = Engine.open(folder, replace(SETTINGS, plan="cpu"))
    try:
        assert found == answer(whole)
    finally:
        whole.close()

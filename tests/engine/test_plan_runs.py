"""What is printed is what runs: a plan's bytes against the allocators' own counters, and choices that show."""

import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.engine.engine import Engine
from localmoe.engine.plan_json import plan_json, plan_object
from localmoe.engine.scheduler import MAX_BATCH, PASSING_TOKENS
from localmoe.engine.scratch import scratch_bytes
from localmoe.errors import UsageError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings
from localmoe.weights.load import load

WEIGHTS = ("routed experts", "other weights", "embedding")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens a checkpoint of a shape, or the embedded model, and closes it in the end."""
    engines = []

    def open_with(shape: str, **settings) -> Engine:
        folder = shape
        if shape in SHAPES:
            folder = str(make_checkpoint(tmp_path_factory.mktemp("plan"), **SHAPES[shape]))
        engines.append(Engine.open(folder, Settings(**settings)))
        return engines[-1]

    yield open_with
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("guide", {}),
        ("guide", {"context": 1000, "threads": 1, "cache_dtype": "bf16", "prefill_chunk": 100}),
        ("v3", {"prefill_chunk": 64, "context": 512}),
        ("odd-dims", {"threads": 3}),
        ("moonlight", {"cache_dtype": "bf16", "context": 2048}),
        ("v2-lite", {"prefill_chunk": 1024, "isa": "scalar"}),
        ("mtp-and-shards", {"threads": 2}),
    ],
)
def test_bytes_are_those_that_are_allocated(opened, shape, settings):
    engine = opened(shape, **settings)
    network, memory = engine._opened.network, engine._opened.plan.memory
    store = network._store
    assert memory["latent cache"] == network.cache.nbytes == engine.info.cache_bytes
    assert sum(memory[name] for name in WEIGHTS) == store.nbytes == engine.info.weight_bytes
    assert memory["routed experts"] == store._layout.expert_bytes
    assert memory["embedding"] == pytest.approx(store.linear("model.embed_tokens").weight.nbytes, rel=0.03)
    plan, loop = engine._opened.plan, engine._loop
    programs = (loop.reader._program, loop.passer._program, loop.runner._program)
    assert [program.max_tokens for program in programs] == [plan.chunk, plan.passing_tokens, MAX_BATCH]
    assert plan.passing_tokens == min(plan.chunk, PASSING_TOKENS)
    assert memory["scratch"] == pytest.approx(sum(program.nbytes for program in programs), rel=0.03)
    needed = store.nbytes + network.cache.nbytes + sum(program.nbytes for program in programs)
    assert engine._opened.plan.needed("DRAM") - memory["reserve"] == pytest.approx(needed, rel=0.03)


def test_another_choice_is_another_execution(opened):
    one = opened("v3", threads=1, cache_dtype="bf16", prefill_chunk=48, context=256, isa="scalar", plan="cpu")
    two = opened("v3", threads=2, cache_dtype="float32", prefill_chunk=96, context=512)
    for engine in (one, two):
        network, plan, info = engine._opened.network, engine._opened.plan, engine.info
        assert plan.num_threads == network.num_threads == info.num_threads
        assert plan.cache_dtype == network.cache.dtype
        assert plan.chunk == engine._loop.reader.max_tokens == plan.placement.chunk
        assert plan.context_limit == engine._loop.context_limit == info.context_limit
        assert plan.isa == network.isa == info.isa == engine._loop.reader._program._program.target
        assert plan.num_pages == network.cache.num_pages
        assert plan.kind == "cpu"
    assert one.info.isa == "scalar" != two.info.isa
    assert one._opened.network.cache.nbytes < two._opened.network.cache.nbytes


@pytest.mark.parametrize("kind", ["slp", "dslp"])
def test_a_plan_that_cannot_run_here_opens_nothing(opened, kind):
    with pytest.raises(UsageError, match=f"the plan {kind}"):
        opened("guide", plan=kind)


def test_a_model_that_fits_runs_from_disk_where_that_is_forced(opened):
    engine = opened("guide", plan="disk")
    assert engine._opened.plan.kind == "disk" and engine._opened.plan.memory["routed experts"] == 0
    assert plan_json(engine.info)["resident_share"] == 0


def test_the_plan_is_in_the_info_and_as_json(opened):
    engine = opened("guide")
    plan, shown = engine._opened.plan, plan_json(engine.info)
    assert set(plan.reasons) < set(engine.info.plan) == set(shown["decisions"])
    assert shown["kind"] == "cpu" and shown["crossover_tokens"] is None and shown["ring"] is None
    assert {item["name"]: item["num_bytes"] for item in shown["items"]} == plan.memory
    assert shown["memory"]["DRAM"]["needed_bytes"] == sum(plan.memory.values())
    assert shown["isa"] == engine.info.isa and shown["weight_bytes"] == engine.info.weight_bytes
    assert shown | {"decisions": [], "isa": ""} == shown | plan_object(plan) | {"decisions": [], "isa": ""}


@pytest.mark.parametrize("shape", SHAPES)
def test_scratch_is_counted_to_the_byte(shape, tmp_path):
    native = pytest.importorskip("localmoe._native")
    network = pytest.importorskip("localmoe.model.network")
    checkpoint = Checkpoint.open(make_checkpoint(tmp_path, **SHAPES[shape]))
    config = read_config(checkpoint.config)
    for isa in native.supported_targets():
        store = load(checkpoint, expected_tensors(config))
        opened = network.open_network(config, store, cpus=[-1, -1], isa=isa, num_pages=1)
        for num_tokens in (1, 8, 9, 64, 512):
            assert opened.program(num_tokens).nbytes == scratch_bytes(config, num_tokens, 2, isa)
        opened.close()

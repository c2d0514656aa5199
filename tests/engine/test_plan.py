from dataclasses import replace

import pytest
from tiny import DEEPSEEK_V3, SHAPES, V3, make_checkpoint

from localmoe.engine.opening import describe
from localmoe.engine.plan import Resources, make_plan
from localmoe.engine.scratch import ROUNDING_BYTES, scratch_bytes
from localmoe.errors import OutOfMemoryError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings
from localmoe.weights.load import load

GB = 10**9
SMALL = read_config(V3)
FULL = read_config(DEEPSEEK_V3)
LARGE = Resources("avx2", 64, 1000 * GB)


def plan(config=FULL, settings=None, weights=688 * GB, resources=LARGE):
    return make_plan("deepseek-v3", config, settings or Settings(), weights, resources)


def test_a_large_machine_gets_the_default_context_and_a_core_for_the_screen():
    found = plan()
    assert found.context_limit == 8192 and found.num_threads == 63
    assert found.num_pages == 4 * 8192 // 64
    assert found.memory["cache for 8,192 tokens"] == pytest.approx(4 * 1.15 * GB, rel=0.01)
    assert sum(found.memory.values()) <= LARGE.available_bytes


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (3, 2), (64, 63)])
def test_threads(cores, threads):
    assert plan(resources=replace(LARGE, num_cores=cores)).num_threads == threads


def test_every_choice_of_the_user_is_taken_and_told():
    settings = Settings(
        context=30_000, threads=5, cache_dtype="bf16", isa="scalar", prefill_chunk=64, origins={"context": "flag"}
    )
    found = plan(settings=settings, resources=replace(LARGE, isa="scalar"))
    assert (found.context_limit, found.num_threads, found.cache_dtype, found.chunk) == (30_000, 5, "bf16", 64)
    text = " ".join(found.reasons)
    for word in ("30,000 tokens: chosen by flag", "5 threads", "bf16", "scalar kernels: as asked for", "64 tokens"):
        assert word in text


def test_the_model_limits_the_context():
    config = replace(SMALL, max_position=4096)
    for settings in (Settings(), Settings(context=100_000)):
        found = plan(config, settings, GB)
        assert found.context_limit == 4096 and "all that the model was made for" in " ".join(found.reasons)


def test_a_context_that_nobody_asked_for_gives_way_to_memory():
    tight = replace(LARGE, available_bytes=688 * GB + 9 * GB)
    found = plan(resources=tight)
    assert 1024 <= found.context_limit < 8192
    assert "no more fits" in " ".join(found.reasons)
    assert sum(found.memory.values()) <= tight.available_bytes


def test_a_context_that_was_asked_for_does_not():
    tight = replace(LARGE, available_bytes=688 * GB + 9 * GB)
    with pytest.raises(OutOfMemoryError) as caught:
        plan(settings=Settings(context=8192), resources=tight)
    assert "--context 1024" in caught.value.hint


def test_what_does_not_fit_is_told_by_line_item():
    with pytest.raises(OutOfMemoryError) as caught:
        plan(resources=replace(LARGE, available_bytes=503 * GB))
    message = caught.value.message
    for word in (
        "deepseek-v3 needs 69",
        "503.0 GB are available",
        "weights 688.0",
        "cache for",
        "scratch",
        "reserve 6.9",
    ):
        assert word in message
    assert caught.value.hint and caught.value.exit_code == 5


def test_unknown_memory_is_not_guessed():
    assert plan(resources=replace(LARGE, available_bytes=0)).context_limit == 8192


def test_one_session_always_fits_the_pages():
    for context in (1, 63, 64, 65, 1000):
        found = plan(SMALL, Settings(context=context), GB)
        assert found.num_pages * 64 >= found.context_limit == context


def test_descriptions():
    assert describe(FULL, is_demo=False) == "671 B, 37 B active, FP8"
    assert describe(SMALL, is_demo=True).startswith("a tiny demonstration model (1.5 M)")


@pytest.mark.parametrize("shape", SHAPES)
def test_scratch_is_estimated_from_above_but_not_by_far(shape, tmp_path):
    network = pytest.importorskip("localmoe.model.network")
    checkpoint = Checkpoint.open(make_checkpoint(tmp_path, **SHAPES[shape]))
    config = read_config(checkpoint.config)
    store = load(checkpoint, expected_tensors(config))
    opened = network.open_network(config, store, cpus=[-1, -1], num_pages=1)
    for num_tokens in (8, 64, 512):
        nbytes = opened.program(num_tokens).nbytes
        assert nbytes <= scratch_bytes(config, num_tokens, 2) <= 1.6 * nbytes + ROUNDING_BYTES
    opened.close()

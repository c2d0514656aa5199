"""The plan on the CPU: what it chooses, why, and how it refuses."""

from dataclasses import replace

import pytest
from planned import FULL, FULL_BYTES, GB, MOONLIGHT, RATES, SMALL, gpus, machine, planned, told
from recorded import NAMES, recorded
from tiny import make_checkpoint

from localmoe.engine.cost.sizes import common_bytes, routed_bytes
from localmoe.engine.opening import describe
from localmoe.engine.plan import forecast, make_plan
from localmoe.engine.plan.asked import memory_nodes
from localmoe.errors import NotReadyError, OutOfMemoryError, UsageError
from localmoe.hardware import HugePool
from localmoe.hub.catalog import load_catalog
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings
from localmoe.weights import numa
from localmoe.weights.layout import plan_layout

KIMI = read_config(load_catalog()["kimi-k2-instruct-0905"].config)

TIGHT = FULL_BYTES + 8_500_000_000  # scratch, reserve, and less cache than the default


def test_a_large_machine_gets_the_default_context_and_a_core_for_the_screen():
    found = planned()
    assert found.kind == "cpu" and found.context_limit == 8192 and found.num_threads == 63
    assert found.num_pages == 4 * 8192 // 64
    assert found.memory["latent cache"] == pytest.approx(4 * 1.15 * GB, rel=0.01)
    assert found.needed("DRAM") == sum(found.memory.values()) <= found.available["DRAM"] == 1000 * GB
    assert found.crossover_tokens is None and found.ring is None and found.gpus == ()


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (3, 2), (64, 63)])
def test_threads(cores, threads):
    assert planned(machine(cores=cores)).num_threads == threads


def test_every_choice_of_the_user_is_taken_and_told():
    origins = dict.fromkeys(("context", "threads", "prefill_chunk", "plan"), "flag")
    settings = Settings(
        context=30_000, threads=5, cache_dtype="bf16", isa="scalar", prefill_chunk=64, plan="cpu", origins=origins
    )
    found = planned(settings=settings)
    assert (found.context_limit, found.num_threads, found.cache_dtype, found.chunk) == (30_000, 5, "bf16", 64)
    assert (found.isa, found.placement.chunk, found.placement.cache_element_bytes) == ("scalar", 64, 2)
    text = "\n".join(found.reasons)
    for words in (
        "plan: cpu; chosen by --plan",
        "context: 30,000 tokens; chosen by --context",
        "threads: 5; chosen by --threads",
        "latent cache: bf16",
        "kernels: scalar; as asked for",
        "prefill chunks: 64 tokens; chosen by --prefill-chunk",
    ):
        assert words in text


def test_each_decision_has_a_reason():
    for found in (planned(), planned(machine(gpus=gpus(32 * GB, 32 * GB))), planned(machine(200 * GB))):
        assert all(decision.choice and decision.why for decision in found.decisions)
        whats = [decision.what for decision in found.decisions]
        assert len(whats) == len(set(whats)) and whats[0] == "plan"
        assert {"prefill", "decode", "threads", "context", "latent cache", "prefill chunks"} <= set(whats)


def test_weights_are_told_part_by_part():
    found = planned()
    assert found.memory["routed experts"] == routed_bytes(FULL) == pytest.approx(653.9 * GB, rel=1e-3)
    assert found.memory["embedding"] == pytest.approx(1.85 * GB, rel=1e-2)
    names = ("routed experts", "other weights", "embedding")
    assert sum(found.memory[name] for name in names) == routed_bytes(FULL) + common_bytes(FULL)
    exact = planned(weight_bytes=FULL_BYTES, expert_bytes=650 * GB)
    assert exact.memory["routed experts"] == 650 * GB and sum(exact.memory[name] for name in names) == FULL_BYTES


def test_one_copy_of_the_experts_serves_both_phases():
    shared = planned().shared
    assert shared.routed_share == pytest.approx(0.972, abs=1e-3)
    assert shared.saved_bytes == shared.routed_bytes
    assert shared.total_bytes == FULL_BYTES


def test_the_model_limits_the_context():
    config = replace(SMALL, max_position=4096)
    for settings in (Settings(), Settings(context=100_000)):
        found = planned(config=config, settings=settings)
        assert found.context_limit == 4096 and "all that the model was made for" in told(found, "context")


def test_a_context_that_nobody_asked_for_gives_way_to_memory():
    tight = machine(TIGHT, disk=0)
    found = planned(tight)
    assert 1024 <= found.context_limit < 8192 and found.longest_context == found.context_limit
    assert "no more fits" in told(found, "context")
    assert found.needed("DRAM") <= tight.memory.usable_bytes


def refused(*arguments, **options) -> OutOfMemoryError:
    with pytest.raises(OutOfMemoryError) as caught:
        planned(*arguments, **options)
    assert caught.value.exit_code == 5 and caught.value.hint
    return caught.value


def test_a_context_that_was_asked_for_does_not_and_the_hint_fits_exactly():
    tight = machine(TIGHT)
    asked = Settings(context=32_768, plan="cpu")
    error = refused(tight, settings=asked)
    fits = int(error.hint.split("--context ")[1].split()[0])
    assert fits % 64 == 0
    assert planned(tight, settings=replace(asked, context=fits)).context_limit == fits
    assert f"--context {fits}" in refused(tight, settings=replace(asked, context=fits + 1)).hint


def test_bf16_is_named_where_it_is_enough():
    found = planned(settings=Settings(context=32_768))
    one_session = found.memory["latent cache"] * 512 // found.num_pages
    need = found.needed("DRAM") - found.memory["latent cache"] + one_session
    tight = machine(need - 2 * GB)
    asked = Settings(context=32_768, plan="cpu")
    assert "LOCALMOE_CACHE_DTYPE=bf16 saves 2.3 GB, which is enough" in refused(tight, settings=asked).hint
    assert planned(tight, settings=replace(asked, cache_dtype="bf16")).context_limit == 32_768
    assert "bf16" not in refused(machine(need - 3 * GB), settings=asked).hint


def test_for_bf16_weights_that_would_fit_in_fp8_the_conversion_is_named():
    asked = Settings(plan="cpu")
    hint = refused(machine(24 * GB), config=MOONLIGHT, settings=asked).hint
    assert "localmoe quantize makes FP8 of it, which saves 15.3 GB and fits" in hint
    in_fp8 = replace(MOONLIGHT, weight_format="fp8")
    assert planned(machine(24 * GB), config=in_fp8, settings=asked).kind == "cpu"
    assert "quantize" not in refused(machine(8 * GB), config=MOONLIGHT, settings=asked).hint
    assert "quantize" not in refused(machine(503 * GB), settings=asked).hint


def test_what_does_not_fit_is_told_by_line_item():
    error = refused(machine(503 * GB, disk=0))
    for words in (
        "deepseek-v3 needs 682.",
        "503.0 GB are available",
        "routed experts 654.1",
        "other weights 17.2",
        "embedding 1.9",
        "latent cache for 8,192 tokens 1.2",
        "scratch 1.0",
        "reserve 6.7",
    ):
        assert words in error.message
    assert "GB more memory would do" in error.hint and "choose a smaller model" in error.hint
    assert "which fit); experts cannot come from disk: /models has 0 MB free, 673.1 GB too little" in error.hint


def test_bytes_that_other_programs_have_are_told_as_such():
    on = machine(680 * GB, disk=0)
    on = replace(on, memory=replace(on.memory, total_bytes=1000 * GB))
    assert "close other programs: " in refused(on).hint
    group = replace(on, memory=replace(on.memory, available_bytes=990 * GB, cgroup_limit_bytes=680 * GB))
    assert "raise this container's memory limit by " in refused(group).hint


def test_the_bytes_that_are_missing_are_exact():
    on = machine(680 * GB, disk=0)
    missing = float(refused(on).hint.split(" GB more memory")[0].split()[-1]) * GB
    assert planned(machine(680 * GB + int(missing + 0.1 * GB), disk=0)).kind == "cpu"
    refused(machine(680 * GB + int(missing - 0.2 * GB), disk=0), settings=Settings(context=8192))


def test_unknown_memory_is_not_guessed():
    found = planned(machine(None))
    assert found.context_limit == 8192 and found.available == {} and found.longest_context == FULL.max_position


def test_pages_set_aside_for_weights_are_no_part_of_what_is_available():
    on = machine(20 * GB)
    pool = HugePool(2 << 20, 400_000, 330_000)
    found = planned(replace(on, memory=replace(on.memory, huge_pools=(pool,))), settings=Settings(plan="cpu"))
    assert found.available["DRAM"] == 20 * GB + FULL_BYTES
    with_pool = replace(on, memory=replace(on.memory, huge_pools=(pool,)))
    bounded = replace(with_pool, limits=replace(on.limits, huge_page_bytes=100 * GB))
    refused(bounded, settings=Settings(plan="cpu"))
    refused(
        replace(on, memory=replace(on.memory, huge_pools=(replace(pool, num_free=300_000),))),
        settings=Settings(plan="cpu"),
    )


def test_unused_huge_pages_that_hold_the_memory_are_named_first():
    pool = HugePool(1 << 30, 600, 600)
    on = machine(100 * GB, disk=0)
    on = replace(on, memory=replace(on.memory, total_bytes=810 * GB, huge_pools=(pool,)))
    hint = refused(on, settings=Settings(plan="cpu")).hint
    assert hint.startswith(f"free 644.2 GB in unused huge pages of 1 GB: echo 0 | sudo tee {pool.file}; or ")
    assert "close other programs" not in hint
    few = replace(on, memory=replace(on.memory, huge_pools=(replace(pool, num_pages=500, num_free=500),)))
    assert "/nr_hugepages; and close other programs: " in refused(few, settings=Settings(plan="cpu")).hint
    used = replace(on, memory=replace(on.memory, huge_pools=(replace(pool, num_free=0),)))
    assert refused(used, settings=Settings(plan="cpu")).hint.split(" GB ", 1)[1].startswith("more memory would do")
    from_disk = planned(replace(on, disks=machine().disks))
    assert from_disk.kind == "disk" and "To have more, free 644.2 GB in unused" in told(from_disk, "plan")


def test_a_pool_of_2_mb_pages_that_is_too_small_is_named_too():
    on = machine(300 * GB, disk=0)
    pool = HugePool(2 << 20, 200_000, 200_000)
    on = replace(on, memory=replace(on.memory, total_bytes=800 * GB, huge_pools=(pool,)))
    assert "free 419.4 GB in unused huge pages of 2 MB" in refused(on, settings=Settings(plan="cpu")).hint


def test_a_long_chunk_that_the_user_chose_may_be_shortened():
    settings = Settings(plan="cpu", prefill_chunk=65_536, origins={"prefill_chunk": "environment"})
    hint = refused(machine(720 * GB), settings=settings).hint
    chunk = int(hint.split("LOCALMOE_PREFILL_CHUNK=")[1].split()[0])
    assert planned(machine(720 * GB), settings=replace(settings, prefill_chunk=chunk)).chunk == chunk
    refused(machine(720 * GB), settings=replace(settings, prefill_chunk=2 * chunk))
    assert "PREFILL_CHUNK" not in refused(machine(503 * GB), settings=settings).hint


@pytest.mark.parametrize(("config", "copy"), [(FULL, "654.1 GB"), (KIMI, "1,014.9 GB")])
def test_what_a_second_copy_would_take(config, copy):
    assert told(planned(machine(1500 * GB), config), "copies of experts").endswith(f"would take {copy} more")


def test_memory_of_nodes_that_are_not_allowed_does_not_count():
    on = machine(1400 * GB, nodes=(700 * GB, 700 * GB))
    assert planned(on).kind == "cpu"
    one = replace(on, limits=replace(on.limits, nodes=(1,)), disks=())
    assert "700.0 GB are available" in refused(one, weight_bytes=700 * GB).message


def test_rows_are_split_over_nodes_and_a_full_node_is_told():
    found = planned(machine(1400 * GB, nodes=(700 * GB, 700 * GB)))
    assert "each of nodes 0, 1 has half of every expert's rows" in told(found, "NUMA")
    routed = next(item for item in found.items if item.name == "routed experts")
    assert [node for node, _ in routed.nodes] == [0, 1]
    assert sum(nbytes for _, nbytes in routed.nodes) == routed.num_bytes
    assert routed.nodes[0][1] == pytest.approx(routed.num_bytes / 2, rel=1e-6)
    uneven = planned(machine(1400 * GB, nodes=(1100 * GB, 300 * GB)))
    assert told(uneven, "node 1").startswith("node 1: 36.6 GB on other nodes")
    assert not any(decision.what == "node 0" for decision in uneven.decisions)
    assert not any(decision.what == "NUMA" for decision in planned(machine()).decisions)


@pytest.mark.parametrize("name", NAMES)
def test_nodes_are_those_that_the_weights_are_split_over(name, tmp_path):
    found = recorded(name, tmp_path)
    nodes = numa.memory_nodes(str(tmp_path))
    assert memory_nodes(found.probe()) == (tuple(nodes) if len(nodes) > 1 else ())


@pytest.mark.parametrize("num_nodes", [2, 3, 4])
def test_bytes_of_a_node_are_those_of_the_layout(num_nodes, tmp_path):
    checkpoint = Checkpoint.open(make_checkpoint(tmp_path, moe_intermediate_size=176, hidden_size=200))
    config = read_config(checkpoint.config)
    specs = expected_tensors(config)
    layout = plan_layout([checkpoint.tensors[spec.name] for spec in specs], range(num_nodes))
    on = machine(nodes=(100 * GB,) * num_nodes)
    found = planned(on, config, weight_bytes=layout.nbytes, expert_bytes=layout.expert_bytes)
    routed = next(item for item in found.items if item.name == "routed experts")
    strides = [sum(e.num_experts * e.parts[n].stride for e in layout.experts.values()) for n in range(num_nodes)]
    for (_, told_bytes), stride in zip(routed.nodes, strides, strict=True):
        assert told_bytes / routed.num_bytes == pytest.approx(stride / sum(strides), abs=0.02)


def test_one_session_always_fits_the_pages():
    for context in (1, 63, 64, 65, 1000):
        found = planned(config=SMALL, settings=Settings(context=context))
        assert found.num_pages * 64 >= found.context_limit == context


def test_kernels_that_do_not_run_here_are_refused():
    with pytest.raises(UsageError, match="avx512"):
        planned(settings=Settings(isa="avx512"))
    on = machine()
    with pytest.raises(NotReadyError, match="no kernels"):
        planned(replace(on, cpu=replace(on.cpu, targets=())))
    assert planned(isa="reference").isa == "reference"


def test_what_runs_is_the_fastest_and_the_plan_says_so():
    found = planned(machine(gpus=gpus(32 * GB)), executable_only=True)
    assert found.kind == "slp" and "predicted for a prompt of 4,096 tokens" in told(found, "plan")
    assert found.read_tokens == found.pass_tokens >= found.crossover_tokens
    assert told(planned(executable_only=True), "plan") == "plan: cpu; the bus shows no NVIDIA GPU"


def test_a_gpu_that_cannot_be_used_is_told():
    why = "this torch is built for CPUs only: install one for CUDA"
    found = planned(machine(gpus=gpus(32 * GB)), executable_only=True, why_no_gpu=lambda: why)
    assert told(found, "plan") == f"plan: cpu; the GPU cannot be used: {why}"


@pytest.mark.parametrize("kind", ["slp", "dslp"])
def test_a_plan_with_gpus_runs_where_it_is_asked_for_and_gpus_are(kind):
    settings = Settings(plan=kind, origins={"plan": "environment"})
    both = machine(gpus=gpus(32 * GB, 32 * GB))
    found = planned(both, settings=settings, executable_only=True)
    assert found.kind == kind and told(found, "plan") == f"plan: {kind}; chosen by LOCALMOE_PLAN"
    with pytest.raises(UsageError, match=f"the plan {kind} needs a GPU: torch is too old"):
        planned(both, settings=settings, executable_only=True, why_no_gpu=lambda: "torch is too old")
    with pytest.raises(UsageError, match=f"the plan {kind} needs .*: no NVIDIA driver") as caught:
        planned(settings=settings, executable_only=True)
    assert "--plan cpu" in caught.value.hint


def test_who_runs_a_model_too_large_hears_what_the_disk_would_do():
    error = refused(machine(200 * GB), executable_only=True)
    assert "--plan disk reads experts from disk, about 0." in error.hint


def test_the_plan_from_disk_runs_where_it_is_asked_for():
    settings = Settings(plan="disk", origins={"plan": "flag"})
    found = planned(machine(200 * GB), settings=settings, executable_only=True)
    assert found.kind == "disk" and 0 < found.placement.resident_share < 1
    assert told(found, "plan") == "plan: disk; chosen by --plan"


def test_rates_are_found_out_once():
    found_out = []

    def give():
        found_out.append(RATES)
        return RATES

    assert planned(rates=give, executable_only=True).kind == "cpu"
    assert len(found_out) == 1  # for what is done side by side
    refused(machine(200 * GB), rates=give, executable_only=True)
    assert len(found_out) == 2


def test_a_forecast_is_told_for_what_fits():
    found = planned(machine(TIGHT, disk=0))
    prediction = forecast(found, RATES, FULL)
    assert [p.num_tokens for p in prediction.prefill] == [1024] and prediction.crossover_tokens is None
    wide = forecast(planned(), RATES, FULL, prompts=(32_768,), contexts=(1024,), streams=(1,))
    assert wide.prefill[0].way == "cpu" and wide.decode[0].tok_s > 1


def test_a_plan_is_made_from_a_config_alone():
    found = make_plan(machine(), MOONLIGHT, Settings(), RATES, name="moonlight")
    assert found.shared.total_bytes == routed_bytes(MOONLIGHT) + common_bytes(MOONLIGHT)


def test_descriptions():
    assert describe(FULL, is_demo=False) == "671 B, 37 B active, FP8"
    assert describe(SMALL, is_demo=True).startswith("a tiny demonstration model (1.5 M)")

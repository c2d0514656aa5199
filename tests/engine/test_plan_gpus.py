"""Plans with GPUs: what lies on them, the ring, and when prompts are streamed; on machines that were recorded too."""

from dataclasses import replace

import pytest
from planned import FULL, GB, GPU_RATES, MOONLIGHT, RATES, SMALL, gpu, gpus, machine, measured, planned, told
from recorded import recorded

from localmoe.engine.cost import gpu as on_gpu
from localmoe.engine.cost.gpu_scratch import own_bytes, scratch_bytes
from localmoe.engine.cost.predict import forecast_prefill
from localmoe.engine.cost.prefill import with_attention_on_gpu
from localmoe.engine.cost.sizes import routed_bytes, sizes_of
from localmoe.engine.plan import forecast, on_gpus
from localmoe.engine.plan import passing as passing_plan
from localmoe.engine.plan.alone import SCRATCH
from localmoe.engine.plan.forecasts import prediction_inputs
from localmoe.engine.plan.passing import no_passing
from localmoe.engine.scheduler import PASSING_TOKENS
from localmoe.engine.scratch import scratch_bytes as scratch_bytes_of_cpu
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.hardware import GpuPair
from localmoe.settings import Settings

EXPERT = sizes_of(FULL).expert.num_bytes
BESIDE = {"scratch beside the CPU", "slots of shared experts", passing_plan.SCRATCH}
ONE = machine(gpus=gpus(32 * GB))
TWO = machine(gpus=gpus(32 * GB, 32 * GB))


def on_recorded(machine_name, tmp_path, config=FULL, free_disk=2000 * GB, **options):
    """The plan for a recorded machine, whose disk has the room that is given."""
    found = recorded(machine_name, tmp_path).probe()
    disks = tuple(replace(disk, free_bytes=free_disk) for disk in found.disks)
    return planned(replace(found, disks=disks), config, **options)


def items(plan, place):
    return {item.name: item.num_bytes for item in plan.items if item.place == place}


def test_one_gpu_attends_and_long_prompts_are_streamed_to_it():
    found = planned(ONE)
    assert found.kind == "slp" and found.gpus == (0,) and found.cache_dtype == "bf16"
    assert found.places == ("DRAM", "GPU 0") and found.placement.num_gpus == 1
    assert told(found, "prefill").startswith("prefill: attention on GPU 0, experts on the CPU")
    assert told(found, "decode").startswith("decode: attention on GPU 0, experts on the CPU")
    assert f"experts on GPU 0 from {found.crossover_tokens:,} tokens on" in told(found, "long prompts")
    assert "predicted for a prompt of 4,096 tokens" in told(found, "plan")
    assert found.num_threads == 62 and "1 for feeding GPUs" in told(found, "threads")


def test_a_streamed_prompt_leaves_one_gpu_to_steps_and_comes_second_on_several():
    one, two = planned(ONE), planned(TWO, settings=Settings(plan="dslp", origins={"plan": "flag"}))
    assert one.sharing.takes_turns and "leaves GPU 0 to them between two tiles" in told(one, "decode's turns")
    assert not two.sharing.takes_turns and "by priority of their kernels" in told(two, "decode's turns")


def test_what_every_token_needs_lies_on_the_gpu_and_the_experts_in_dram():
    found = planned(ONE)
    vram = items(found, "GPU 0")
    assert vram["attention, dense and shared weights"] == pytest.approx(17.2 * GB, rel=0.01)
    assert vram["latent cache"] == 128 * 61 * 64 * 576 * 2
    assert vram["ring"] == found.ring.slots * EXPERT
    assert sum(vram.values()) <= found.available["GPU 0"] == 32 * GB
    mine = {"routed experts", "other weights", "embedding", "latent cache", "scratch", "reserve"}
    assert set(found.memory) == mine | {"rows to and from GPUs"}  # the GPU's weights are uploaded from there
    assert found.memory["routed experts"] == pytest.approx(654 * GB, rel=1e-3)


def test_medium_prompts_are_shared_up_to_the_crossover():
    found = planned(ONE)
    first = found.sharing.mixed_from
    assert 8 < first < found.crossover_tokens
    until = f"from {first:,} tokens to {found.crossover_tokens - 1:,}; "
    assert f"medium prompts: experts on GPU 0 and the CPU {until}" in told(found, "medium prompts")
    assert items(found, "GPU 0")["slots of shared experts"] == 4 * EXPERT
    crawling = replace(RATES, gpus=(replace(GPU_RATES, h2d=measured(1e8)),))
    alone = planned(ONE, rates=crawling, settings=Settings(plan="slp"))
    assert alone.sharing.mixed_from is None and "slots of shared experts" not in items(alone, "GPU 0")
    assert told(alone, "medium prompts").startswith("medium prompts: as short ones; moving some experts pays for no")


def test_short_prompts_pass_where_that_is_over_well_before_the_run_that_they_pass():
    found = planned(ONE)
    assert found.passing_tokens == PASSING_TOKENS < found.crossover_tokens
    assert f"those of up to {PASSING_TOKENS} tokens pass longer ones; GPU 0 and the CPU" in told(found, "short prompts")
    half = replace(RATES, cpu=replace(RATES.cpu, stream=measured(150e9)))
    slower = planned(ONE, rates=half, settings=Settings(plan="slp"))
    assert 8 < slower.passing_tokens < PASSING_TOKENS
    rates, config = prediction_inputs(slower, half, FULL)
    fits, not_any_more = (
        with_attention_on_gpu(rates, config, slower.placement, slower.passing_tokens + n).seconds for n in (0, 1)
    )
    a_quarter_s = routed_bytes(FULL) / 50e9 / 4  # of a pass over the experts
    assert fits <= a_quarter_s < not_any_more


def test_no_prompt_passes_where_a_few_tokens_take_too_long():
    crawls = replace(RATES, cpu=replace(RATES.cpu, stream=measured(20e9)))
    found = planned(ONE, rates=crawls, settings=Settings(plan="slp"))
    assert found.passing_tokens == 0 and passing_plan.SCRATCH not in items(found, "GPU 0")
    assert "wait for a longer one's run; beside answers a few tokens may take as long" in told(found, "short prompts")


def test_where_nothing_is_streamed_a_whole_chunk_is_passed():
    crawling = replace(RATES, gpus=(replace(GPU_RATES, h2d=measured(1e8)),))
    found = planned(ONE, rates=crawling, settings=Settings(plan="slp"))
    assert found.crossover_tokens is None and found.passing_tokens == PASSING_TOKENS
    asked = Settings(plan="slp", prefill_chunk=64, origins={"prefill_chunk": "flag"})
    assert planned(ONE, rates=crawling, settings=asked).passing_tokens < 32  # of a chunk of 64


def test_prompts_that_pass_take_room_from_what_is_spare_and_then_from_the_ring(monkeypatch):
    for on in (ONE, TWO, machine(gpus=gpus(96 * GB))):
        found = planned(on)
        with monkeypatch.context() as patch:
            patch.setattr(on_gpus, "plan_passing", lambda asked, rates, vram, *_: no_passing(vram))
            without = planned(on)
        scratch = items(found, "GPU 0")[passing_plan.SCRATCH]
        assert scratch == own_bytes(FULL, found.passing_tokens, 8192)
        assert found.beside_bytes - without.beside_bytes == scratch
        given = sum(
            items(without, "GPU 0").get(n, 0) - items(found, "GPU 0").get(n, 0) for n in ("ring", "hot experts")
        )
        assert abs(given - scratch) < 2 * EXPERT or found.ring == without.ring
        assert found.needed("GPU 0") <= found.available["GPU 0"]
        in_dram = scratch_bytes_of_cpu(FULL, found.passing_tokens, found.num_threads, found.isa)
        assert found.memory["scratch"] - without.memory["scratch"] >= in_dram
        assert found.memory["rows to and from GPUs"] > without.memory["rows to and from GPUs"]
        same = ("context_limit", "pass_tokens", "chunk", "crossover_tokens")
        assert all(getattr(found, name) == getattr(without, name) for name in same)


def test_no_prompt_passes_where_there_is_no_room_for_it():
    tight = planned(machine(gpus=gpus(22 * GB)), settings=Settings(plan="slp"))
    assert tight.ring.slots >= 2 and 8 < tight.passing_tokens < PASSING_TOKENS
    least = planned(machine(gpus=gpus(21_600_000_000)), settings=Settings(plan="slp"))
    assert least.passing_tokens == 0 and passing_plan.SCRATCH not in items(least, "GPU 0")
    assert "wait for a longer one's run; GPU 0 has no room left" in told(least, "short prompts")
    needed = planned(ONE).needed("DRAM")
    assert planned(replace(ONE, memory=machine(needed).memory)).passing_tokens == PASSING_TOKENS
    full = planned(replace(ONE, memory=machine(needed - 1).memory))
    assert full.kind == "slp" and full.passing_tokens == 0 and full.needed("DRAM") < needed
    assert "wait for a longer one's run; memory has no room left" in told(full, "short prompts")


def test_room_that_nothing_else_needs_is_for_hot_experts():
    none = planned(ONE)
    assert none.sharing.num_hot == 0 and told(none, "hot experts").startswith("hot experts: none; GPU 0 has no room")
    some = planned(machine(gpus=gpus(96 * GB)))
    vram = items(some, "GPU 0")
    assert vram["hot experts"] == some.sharing.num_hot * EXPERT
    assert 96 * GB - EXPERT < sum(vram.values()) <= 96 * GB
    assert f"up to {some.sharing.num_hot:,} on GPU 0" in told(some, "hot experts")
    assert some.memory["scratch"] > none.memory["scratch"]  # of steps with and without them


def test_a_second_batch_is_planned_only_where_it_pays():
    two = planned(ONE)
    assert two.sharing.alternates and "two, once steps were measured" in told(two, "batches of a step")
    idle = replace(GPU_RATES, layer=measured(1e-9), memory=measured(1e15), attention=measured(1e16))
    one = planned(ONE, rates=replace(RATES, gpus=(idle,)), settings=Settings(plan="slp"))
    assert not one.sharing.alternates and told(one, "batches of a step").startswith("batches of a step: one; ")
    scratch = [items(found, "GPU 0")["scratch beside the CPU"] for found in (one, two)]
    assert scratch[0] < scratch[1] and one.memory["scratch"] < two.memory["scratch"]


def test_two_gpus_stream_half_of_each_layer_each():
    found = planned(TWO)
    assert found.kind == "dslp" and found.gpus == (0, 1)
    assert "each GPU streams half of every layer's experts" in told(found, "long prompts")
    first, second = items(found, "GPU 0"), items(found, "GPU 1")
    assert set(first) - set(second) == BESIDE and set(second) - set(first) == {SCRATCH}  # what each does alone
    assert all(first[name] == second[name] for name in set(first) & set(second))
    assert found.ring.slots == 128  # of 256 experts


def test_the_last_gpu_reads_alone_in_room_that_the_first_one_lacks(monkeypatch):
    found = planned(TWO, settings=Settings(plan="dslp", context=32_768))
    scratch = items(found, "GPU 1")[SCRATCH]
    assert found.crossover_tokens < found.alone_tokens < found.pass_tokens == 16_384
    assert scratch == scratch_bytes(FULL, found.alone_tokens, 1, 32_768)
    assert 32 * GB - 300_000 < found.needed("GPU 1") <= 32 * GB  # a token takes 260,108
    why = told(found, "beside answers")
    assert f"GPU 1 reads long prompts alone, up to {found.alone_tokens:,} tokens at once" in why
    assert "steps then have GPU 0 to themselves" in why
    monkeypatch.setattr(on_gpus, "plan_alone", lambda *_: None)
    without = planned(TWO, settings=Settings(plan="dslp", context=32_768))
    assert without == replace(
        found,
        alone_tokens=None,
        items=tuple(item for item in found.items if item.name != SCRATCH),
        decisions=tuple(each for each in found.decisions if each.what != "beside answers"),
    )


def test_the_last_gpu_reads_no_more_alone_than_all_do_at_once():
    assert planned(TWO).alone_tokens == planned(TWO).pass_tokens == 8192
    uneven = planned(machine(gpus=gpus(24 * GB, 40 * GB)), settings=Settings(plan="dslp"))
    assert uneven.alone_tokens == 8192  # in its own room, which may be more than the first one's
    assert planned(machine(gpus=gpus(23 * GB, 23 * GB)), settings=Settings(plan="dslp")).alone_tokens < 8192


def test_a_gpu_with_too_little_room_does_not_read_alone():
    slow = replace(RATES, gpus=(replace(GPU_RATES, h2d=measured(12e9)),) * 2)
    found = planned(machine(gpus=gpus(22_600_000_000, 22_600_000_000)), rates=slow, settings=Settings(plan="dslp"))
    assert found.alone_tokens is None and SCRATCH not in items(found, "GPU 1")
    why = told(found, "beside answers")
    assert "all GPUs read long prompts; GPU 1 alone has room for" in why
    assert f"from {found.crossover_tokens:,} on experts are streamed" in why


def test_one_gpu_has_no_other_to_leave_to_steps():
    assert planned(ONE).alone_tokens is None
    assert not any(each.what == "beside answers" for each in planned(ONE).decisions)


def test_the_gpu_with_the_least_room_decides_for_both():
    uneven = planned(machine(gpus=gpus(40 * GB, 24 * GB)), settings=Settings(plan="dslp"))
    even = planned(machine(gpus=gpus(24 * GB, 24 * GB)), settings=Settings(plan="dslp"))
    assert uneven.ring == even.ring and items(uneven, "GPU 0") == items(even, "GPU 0")
    assert uneven.available["GPU 0"] == 40 * GB


def test_a_small_gpu_does_not_hold_the_others_back():
    found = planned(machine(gpus=gpus(8 * GB, 32 * GB, 30 * GB)))
    assert found.kind == "dslp" and found.gpus == (1, 2) and found.ring.slots == 128
    with pytest.raises(UsageError, match="1 more with less than half of its room"):
        planned(machine(gpus=gpus(8 * GB, 32 * GB)), settings=Settings(plan="dslp"))


def test_slp_takes_the_roomier_gpu():
    found = planned(machine(gpus=gpus(24 * GB, 32 * GB)), settings=Settings(plan="slp"))
    assert found.gpus == (1,) and "GPU 1" in found.places


def test_the_crossover_is_computed_from_the_rates():
    slow = replace(RATES, gpus=(replace(GPU_RATES, h2d=measured(10e9)),))
    fast, slower = planned(ONE), planned(ONE, rates=slow)
    assert 64 < fast.crossover_tokens < slower.crossover_tokens
    rates, config = prediction_inputs(fast, RATES, FULL)
    for tokens, way in ((fast.crossover_tokens - 1, "cpu+gpu"), (fast.crossover_tokens, "stream")):
        assert forecast_prefill(rates, config, replace(fast.placement, chunk=4096), tokens).way == way
    assert forecast(fast, RATES, FULL).crossover_tokens == pytest.approx(fast.crossover_tokens, rel=0.02)


def test_a_link_too_slow_for_any_prompt_is_told():
    crawling = replace(RATES, gpus=(replace(GPU_RATES, h2d=measured(1e8)),))
    found = planned(ONE, rates=crawling, settings=Settings(plan="slp"))
    assert found.crossover_tokens is None
    assert "the CPU computes experts faster than all of them could be moved" in told(found, "long prompts")


def test_the_cpu_keeps_scratch_only_for_prompts_that_are_not_streamed():
    found = planned(ONE)
    assert found.chunk == found.crossover_tokens < 4096
    chosen = Settings(prefill_chunk=256, origins={"prefill_chunk": "flag"})
    assert planned(ONE, settings=chosen).chunk == 256


def test_the_ring_gives_way_to_scratch_and_cache():
    rings = [planned(ONE, settings=Settings(context=n)).ring.slots for n in (8192, 16_384, 24_576, 32_768)]
    assert rings == sorted(rings, reverse=True) and rings[-1] >= 2
    assert 180 < rings[0] < 256 == planned(machine(gpus=gpus(35 * GB))).ring.slots  # a whole layer


def test_the_ring_is_the_one_that_the_forecast_counts_with():
    for context in (8192, 65_536, 131_072):
        found = planned(ONE, settings=Settings(context=context))
        (gpu_rates,) = prediction_inputs(found, RATES, FULL)[0].gpus
        passes = on_gpu.num_passes(gpu_rates, FULL, context, 1)
        nbytes = on_gpu.ring_bytes(gpu_rates, FULL, context, 1, passes)
        assert items(found, "GPU 0")["ring"] == pytest.approx(nbytes, abs=EXPERT)
        assert f"{'once' if passes == 1 else f'{passes} times'};" in told(found, "passes")


def test_groups_are_as_small_as_launches_and_events_allow():
    assert planned(ONE).ring.group_experts == 3  # 25 us of them, 0.88 ms for an expert
    costly = replace(RATES, gpus=(replace(GPU_RATES, launch=measured(1e-4)),))
    assert planned(ONE, rates=costly).ring.group_experts > 30
    tight = planned(ONE, rates=costly, settings=Settings(context=131_072))
    assert tight.ring.group_experts == max(1, tight.ring.slots // 2)


def test_the_context_gives_way_to_vram_and_is_refused_with_what_fits():
    small = machine(gpus=gpus(21_500_000_000))
    slp = Settings(plan="slp")
    found = planned(small, settings=slp)
    assert 1024 <= found.context_limit < 8192 and "no more fits" in told(found, "context")
    with pytest.raises(OutOfMemoryError, match=r"on GPU 0 and 21.5 GB are available \(attention, dense") as caught:
        planned(small, settings=replace(slp, context=32_768))
    assert caught.value.hint.startswith(f"--context {found.longest_context} fits; or --plan cpu")
    for item in (
        "latent cache for 32,768 tokens 2.3",
        "scratch 0.5",
        "ring 0.1",
        "workspace 1.1",
        "beside the CPU 2.2",
    ):
        assert item in caught.value.message
    assert planned(small, settings=replace(slp, context=found.longest_context)).kind == "slp"


def test_auto_prefers_a_context_that_was_asked_for_to_speed():
    small = machine(gpus=gpus(19 * GB))
    found = planned(small)
    assert found.kind == "cpu" and found.context_limit == 8192
    without = planned(machine(gpus=gpus(10 * GB)))
    assert without.kind == "cpu" and "on GPU 0 and 10.0 GB are available" in told(without, "plan")


def test_auto_takes_the_fastest():
    slow = replace(GPU_RATES, h2d=measured(1e8), memory=measured(5e9), attention=measured(1e10), gemm=measured(1e10))
    found = planned(TWO, rates=replace(RATES, gpus=(slow, slow)))
    assert found.kind == "cpu" and "cpu" in told(found, "plan").split(": ")[2]


@pytest.mark.parametrize(("kind", "count", "why"), [("slp", 0, "no NVIDIA driver"), ("dslp", 1, "1 that can be used")])
def test_a_plan_that_this_machine_cannot_run_is_refused_with_the_reason(kind, count, why):
    with pytest.raises(UsageError, match=why) as caught:
        planned(machine(gpus=gpus(*[32 * GB] * count)), settings=Settings(plan=kind))
    assert "--plan" in caught.value.hint


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (gpu(capability="7.5", name="RTX 2080"), "RTX 2080 has compute capability 7.5"),
        (gpu(free=None), "the room of RTX 5090 is unknown"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_told(odd, why):
    found = planned(machine(gpus=(odd,)))
    assert found.kind == "cpu" and why in told(found, "plan")
    with pytest.raises(UsageError, match=why):
        planned(machine(gpus=(odd,)), settings=Settings(plan="slp"))


def test_a_model_without_routed_experts_streams_nothing():
    dense = replace(SMALL, num_dense_layers=SMALL.num_layers)
    assert planned(TWO, dense, name="dense").kind == "cpu"
    with pytest.raises(UsageError, match="no routed experts"):
        planned(TWO, dense, name="dense", settings=Settings(plan="slp"))


def limited(locked, most):
    return replace(ONE, limits=replace(ONE.limits, locks_freely=False, locked_bytes=locked, locked_most_bytes=most))


def test_what_cannot_be_page_locked_is_told_and_slower():
    free, bound = planned(ONE), planned(limited(8 << 20, 8 << 20))
    assert free.locks_experts and not bound.locks_experts
    text = told(bound, "page-locking")
    assert "may lock 9 MB and the experts are 654.1 GB" in text and "limits.d" in text
    assert "ulimit -l unlimited" in told(planned(limited(8 << 20, None)), "page-locking")
    assert planned(limited(700 * GB, None)).locks_experts
    assert bound.crossover_tokens > 2 * free.crossover_tokens
    slower, faster = (forecast(p, RATES, FULL, prompts=(8192,)).prefill[0].ttft_s for p in (bound, free))
    assert slower > 2 * faster


@pytest.mark.parametrize(("peer", "choice"), [(True, "directly between GPUs"), (False, "through page-locked DRAM")])
def test_how_gpus_exchange_rows(peer, choice):
    pair = GpuPair(0, 1, peer, None if peer else "the GPUs do not support it", 0, "sockets")
    found = planned(replace(TWO, gpu_pairs=(pair,)))
    assert told(found, "exchange").startswith(f"exchange: {choice}")


def test_dram_must_hold_the_experts_for_gpus_too():
    with pytest.raises(OutOfMemoryError, match=r"routed experts 654\.1") as caught:
        planned(machine(500 * GB, gpus=gpus(32 * GB)), settings=Settings(plan="slp"))
    assert "--plan disk reads experts from disk, about" in caught.value.hint


def test_the_paper_machine(tmp_path):
    found = on_recorded("dual-epyc-9355-2x5090", tmp_path, settings=Settings(context=32_768))
    assert found.kind == "dslp" and found.ring.slots == 17 and found.locks_experts
    assert found.available["GPU 0"] == 33_680_261_120
    routed = next(item for item in found.items if item.name == "routed experts")
    assert [node for node, _ in routed.nodes] == [0, 1]
    assert "the GPUs do not support it" in told(found, "exchange")
    prediction = forecast(found, RATES, FULL)
    assert [p.way for p in prediction.prefill if p.num_tokens == 32_768] == ["stream"]
    assert prediction.crossover_tokens == pytest.approx(found.crossover_tokens, rel=0.02)


def test_a_container_with_one_of_the_gpus(tmp_path):
    found = on_recorded("container-64gb", tmp_path, MOONLIGHT)
    assert found.kind == "slp" and found.available["DRAM"] == 55_834_574_848
    assert found.num_threads == 10 and not found.locks_experts
    assert not any(decision.what == "NUMA" for decision in found.decisions)  # one node is allowed


def test_a_container_with_too_little_for_the_model(tmp_path):
    found = on_recorded("container-64gb", tmp_path)
    assert found.kind == "disk" and found.needed("DRAM") <= 55_834_574_848
    with pytest.raises(OutOfMemoryError, match=r"55\.8 GB are available") as caught:
        on_recorded("container-64gb", tmp_path / "again", settings=Settings(plan="cpu"))
    assert "raise this container's memory limit by 6" in caught.value.hint


def test_a_workstation_card_with_96_gb(tmp_path):
    found = on_recorded("threadripper-9985wx-pro6000", tmp_path, MOONLIGHT)
    assert found.kind == "slp" and found.ring.slots == 64  # a whole layer
    assert found.sharing.num_hot == 26 * 64  # all experts
    assert found.available["GPU 1"] == 101_974_016_000  # GPU 0 has failed: the driver still counts it
    assert found.places == ("DRAM", "GPU 1") and "attention on GPU 1" in told(found, "decode")
    assert forecast(found, RATES, MOONLIGHT).prefill
    assert "2.5 GB on the GPU" in told(found, "weights") and "all that a GPU computes of a layer fit" in told(
        found, "ring"
    )


def test_a_plan_that_does_not_fit_is_told_by_its_name():
    found = planned(machine(gpus=gpus(16 * GB)))
    assert found.kind == "cpu" and "; slp does not fit: deepseek-v3 needs" in told(found, "plan")


def test_a_driver_that_waits_for_a_reboot(tmp_path):
    found = on_recorded("broken-driver", tmp_path, MOONLIGHT)
    assert found.kind == "cpu" and "reboot" in told(found, "plan")
    with pytest.raises(UsageError, match="reboot"):
        on_recorded("broken-driver", tmp_path / "again", MOONLIGHT, settings=Settings(plan="slp"))


def test_two_old_cards_on_a_desktop(tmp_path):
    found = on_recorded("desktop-5950x-3090", tmp_path, MOONLIGHT)
    assert found.kind == "dslp" and "directly between GPUs" in told(found, "exchange")
    assert "ulimit -l unlimited" in told(found, "page-locking")

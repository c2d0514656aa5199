"""What a plan costs in seconds: parts, ways and their order. The SLP paper's machine is in test_cost_paper.py."""

import math
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from planned import FULL, MOONLIGHT, SMALL
from tiny import DEEPSEEK_V3, SHAPES, V3

from localmoe.engine.cost import cpu as on_cpu
from localmoe.engine.cost import decode, prefill
from localmoe.engine.cost.placement import Placement, chunks
from localmoe.engine.cost.predict import crossover, forecast_decode, forecast_prefill, predict
from localmoe.engine.cost.rates import Cpu, Gpu, Kernels, Rate, Rates, kernels_from_rows
from localmoe.engine.cost.routing import distinct_experts, over_experts, tiles
from localmoe.engine.cost.sizes import (
    cache_token_bytes,
    common_bytes,
    prompt_attention_flops,
    routed_bytes,
    sizes_of,
    token_attention_flops,
)
from localmoe.engine.cost.term import Term, amount, computed, counted, duration, longest, moved, total
from localmoe.errors import OutOfMemoryError
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors

measured = partial(Rate, origin="measured")

KERNELS = Kernels(
    read=measured(0.9),
    matmul=((1, measured(0.2)), (8, measured(0.4)), (48, measured(0.6)), (256, measured(0.7))),
    prompt_attention=measured(0.6),
    token_attention=measured(0.5),
)
CPU = Cpu(stream=measured(400e9), fma=measured(4e12), kernels=KERNELS, layer=measured(20e-6))
GPU = Gpu(
    vram_bytes=32 << 30,
    memory=measured(1e12),
    gemm=measured(100e12),
    attention=measured(100e12),
    h2d=measured(25e9),
    launch=measured(5e-6),
    event=measured(5e-6),
    layer=measured(200e-6),
)
RATES = Rates("a test's machine", CPU, (GPU, GPU), disk=measured(5e9))
ON_CPU = Placement()
ONE_GPU = Placement(num_gpus=1, chunk=4096)
TWO_GPUS = replace(ONE_GPU, num_gpus=2)
FROM_DISK = Placement(chunk=4096, resident_share=0.5)


def walk(term):
    yield term
    for part in term.parts:
        yield from walk(part)


# sizes


@pytest.mark.parametrize("shape", [*SHAPES, "full"])
def test_bytes_are_those_of_the_tensors_that_a_checkpoint_must_hold(shape):
    keys = DEEPSEEK_V3 if shape == "full" else V3 | SHAPES[shape]
    config = read_config(keys)
    routed = common = 0
    for tensor in expected_tensors(config):
        element = {"F8_E4M3": 1, "F32": 4, "BF16": 2}[tensor.dtypes[0]]
        if tensor.name.endswith("e_score_correction_bias"):
            element = 4
        num_bytes = math.prod(tensor.shape) * element
        if ".experts." in tensor.name:
            routed += num_bytes
        elif "norm" not in tensor.name:
            common += num_bytes
    assert routed_bytes(config) == routed
    assert common_bytes(config) == common


def test_sizes_of_deepseek_v3():
    s = sizes_of(FULL)
    assert s.expert.count == 44_040_192  # 3 x 7168 x 2048
    assert s.expert.num_bytes - s.expert.count == 10.5 * 1024  # scales: 3 x 56 x 16 floats
    assert 256 * s.expert.num_bytes == pytest.approx(11.27e9, rel=1e-3)
    assert routed_bytes(FULL) == pytest.approx(653.9e9, rel=1e-3)
    assert 58 * 8 * s.expert.num_bytes == pytest.approx(20.43e9, rel=1e-3)
    assert common_bytes(FULL) == pytest.approx(19.1e9, rel=5e-3)
    assert common_bytes(FULL, embedding=False) == pytest.approx(17.2e9, rel=5e-3)
    assert cache_token_bytes(FULL, 2) == 70_272
    assert 32_768 * cache_token_bytes(FULL, 2) == pytest.approx(2.3e9, rel=2e-3)


def test_attention_over_latents_is_what_the_config_counts():
    assert FULL.num_layers * token_attention_flops(FULL, 1) == FULL.attention_flops()
    assert token_attention_flops(FULL, 1, 16) == token_attention_flops(FULL, 1)
    few = replace(FULL, num_heads=4)  # scored as 16
    assert token_attention_flops(few, 1, 16) == 2 * (16 * 576 + 4 * 512)


def test_a_prompts_attention_reads_each_key_once_for_each_later_token():
    # 3 tokens: 1 + 2 + 3 keys; one chunk expands 3 of them, chunks of one token expand 1 + 2 + 3
    scores = 6 * 2 * 128 * (128 + 64 + 128)
    expand = 2 * 512 * 128 * (128 + 128)
    assert prompt_attention_flops(FULL, 3, 8) == scores + 3 * expand
    assert prompt_attention_flops(FULL, 3, 1) == scores + 6 * expand


# routing


def test_distinct_experts_of_v3():
    assert distinct_experts(FULL, 1) == pytest.approx(8)
    assert distinct_experts(FULL, 32) == pytest.approx(163.3, abs=0.1)
    assert distinct_experts(FULL, 128) == pytest.approx(251.6, abs=0.1)


@pytest.mark.parametrize("num_tokens", [1, 2, 31, 512, 20_000, 131_072])
def test_every_choice_lands_on_an_expert(num_tokens):
    assert over_experts(FULL, num_tokens, float) == pytest.approx(8 * num_tokens, rel=1e-9)
    assert over_experts(FULL, num_tokens, lambda n: n > 0) == pytest.approx(distinct_experts(FULL, num_tokens))


def test_tiles_are_counted_not_tokens():
    assert tiles(FULL, 1, 128) == pytest.approx(8)  # a tile for each expert, however few tokens it has
    # 4 tokens, 4 of 16 experts each: C(4, n) (1/4)^n (3/4)^(4-n) tokens n an expert, in tiles of 2
    chances = [math.comb(4, n) * 0.25**n * 0.75 ** (4 - n) for n in range(5)]
    assert tiles(SMALL, 4, 2) == pytest.approx(16 * sum(p * math.ceil(n / 2) for n, p in enumerate(chances)))
    # many tokens: half a tile an expert is lost
    assert tiles(FULL, 65_536, 128) == pytest.approx(65_536 * 8 / 128 + 256 / 2, rel=5e-3)


def test_a_model_whose_tokens_take_every_expert():
    config = replace(SMALL, top_k=SMALL.num_experts)
    assert distinct_experts(config, 3) == SMALL.num_experts
    assert tiles(config, 5, 2) == 3 * SMALL.num_experts


# terms


def test_terms_say_where_they_come_from():
    experts = moved("experts", 20.43e9, measured(947e9))
    guess = computed("tiles", 2e15, Rate(100e12, "estimated"))
    tree = total("step", experts, longest("layers", guess, counted("launches", 3000, measured(5e-6))))
    assert list(tree.lines()) == [
        "step: 20.0 s",
        "  experts: 20.4 GB at 947 GB/s = 21.6 ms",
        "  layers: 20.0 s, the longest of",
        "    tiles: 2,000 TFLOP at about 100 TFLOP/s = 20.0 s",
        "    launches: 3,000 of 5.00 us = 15.0 ms",
    ]
    assert tree.find("launches").seconds == pytest.approx(0.015)
    with pytest.raises(KeyError):
        tree.find("nothing")


@pytest.mark.parametrize(
    ("value", "text"), [(999.4, "999 B"), (999.9, "1.00 kB"), (12.34e6, "12.3 MB"), (2.5e15, "2,500 TB")]
)
def test_amounts(value, text):
    assert amount(value, "B") == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.99999, "1.00 s"), (0.0216, "21.6 ms"), (4e-6, "4.00 us"), (1.7e-8, "17.0 ns")]
)
def test_durations(value, text):
    assert duration(value) == text


def test_what_takes_no_time_is_left_out():
    nothing = Term("nothing", "", 0.0)
    assert total("all", nothing).parts == () and longest("all", nothing).seconds == 0


@pytest.mark.parametrize("config", [FULL, MOONLIGHT, SMALL], ids=["v3", "moonlight", "small"])
@pytest.mark.parametrize("placement", [ON_CPU, ONE_GPU, TWO_GPUS, FROM_DISK], ids=["cpu", "gpu", "gpus", "disk"])
def test_every_prediction_is_the_sum_or_the_longest_of_its_parts(config, placement):
    found = predict(RATES, config, placement)
    assert len(found.prefill) >= 2 and len(found.decode) >= 6
    for forecast in (*found.prefill, *found.decode):
        for term in walk(forecast.term):
            assert 0 < term.seconds < math.inf
            if term.parts:
                fold = sum if term.how == "sum" else max
                assert term.seconds == pytest.approx(fold(part.seconds for part in term.parts))
            else:
                assert " at " in term.what or " of " in term.what, term


# rates


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_a_rate_is_above_0(value):
    with pytest.raises(ValueError, match="above 0"):
        Rate(value, "measured", "here")


def test_a_product_is_measured_only_where_both_are():
    guess = Rate(2.0, "estimated")
    assert measured(3.0).times(measured(2.0)).origin == "measured"
    assert measured(3.0).times(guess) == Rate(6.0, "estimated", "; ")


def test_the_slowest_node_decides():
    assert CPU.read.value == pytest.approx(360e9)
    assert replace(CPU, nodes=(measured(250e9), measured(150e9))).read.value == pytest.approx(0.9 * 300e9)
    assert replace(CPU, nodes=(measured(250e9), measured(250e9))).read.value == pytest.approx(0.9 * 400e9)


def test_kernels_from_rows_give_back_what_was_measured():
    rows = {
        "gemv": (17.0, 44.0),
        "gemv-bf16": (32.0, 40.0),
        "moe-8-same": (5.0, 30.0),
        "gemm-48": (110.0, 200.0),
        "gemm-256": (130.0, 200.0),
        "attention-4k": (120.0, 200.0),
        "attend-4k": (90.0, 180.0),
    }
    kernels = kernels_from_rows(rows, "a bench")
    cores = Cpu(stream=measured(44e9), fma=measured(200e9), kernels=kernels, layer=measured(1e-6))
    # seconds of one FP8 weight: its byte over the GB/s of the row; 2 FLOP a token over the GFLOP/s
    assert on_cpu.weight_seconds(cores, 1) == pytest.approx(1 / 17e9)
    assert on_cpu.weight_seconds(cores, 8) == pytest.approx(1 / 5e9)
    assert on_cpu.weight_seconds(cores, 48) == pytest.approx(2 * 48 / 110e9)
    assert on_cpu.weight_seconds(cores, 512) == pytest.approx(2 * 512 / 130e9)
    assert kernels.read.value == 0.8 and kernels.token_attention.value == 0.5
    with pytest.raises(KeyError, match="gemm-48"):
        kernels_from_rows({case: row for case, row in rows.items() if case != "gemm-48"}, "a bench")


def test_strips_are_computed_whole():
    assert on_cpu.weight_seconds(CPU, 33) == on_cpu.weight_seconds(CPU, 48)
    assert on_cpu.weight_seconds(CPU, 7) < on_cpu.weight_seconds(CPU, 8)
    assert on_cpu.weight_seconds(CPU, 0) == 0


# the CPU


def test_a_step_on_the_cpu_reads_the_active_weights():
    term = decode.step(RATES, FULL, ON_CPU, 1024)
    read = sum(t.seconds for t in walk(term) if t.name == "read") * CPU.read.value
    embedding = sizes_of(FULL).embedding.count
    active = FULL.num_active_params() + embedding  # FP8: a byte each; the head has two
    assert read == pytest.approx(active + 1024 * cache_token_bytes(FULL, 4), rel=5e-3)


def test_a_prompt_on_the_cpu_computes_its_active_weights():
    """With kernels at the FMA peak and all of it in one chunk: 2 FLOP a weight and token, and attention."""
    peak = replace(KERNELS, matmul=((1, measured(1.0)),), prompt_attention=measured(1.0))
    rates = replace(RATES, cpu=replace(CPU, kernels=peak, stream=measured(1e15)))
    s, num_tokens = sizes_of(FULL), 4096
    term = prefill.on_the_cpu(rates, FULL, Placement(chunk=num_tokens), num_tokens)
    weights = FULL.num_active_params() - s.head.count - 61 * s.kv_b.count  # expanded as a part of attention
    flops = 2 * num_tokens * weights + 61 * prompt_attention_flops(FULL, num_tokens, num_tokens)
    last_layer = 2 * num_tokens * (8 * s.expert.count + s.shared.count)
    strips = 2 * 57 * 256 * s.expert.count * (16 - 1) / 2  # each expert's last one is half empty
    assert term.seconds == pytest.approx((flops - last_layer + strips) / 4e12, rel=1e-3)


def test_larger_chunks_read_the_weights_less_often():
    slow = replace(RATES, cpu=replace(CPU, stream=measured(4e9)))
    small, large = (prefill.on_the_cpu(slow, FULL, Placement(chunk=n), 4096).seconds for n in (256, 2048))
    assert small > 5 * large


def test_chunks():
    assert chunks(1000, 512) == ((512, 1), (488, 1))
    assert chunks(1024, 512) == ((512, 2),)
    assert chunks(3, 512) == ((3, 1),)


# experts from disk


def test_a_prompt_waits_for_the_disk_where_dram_does_not_hold_the_experts():
    placement = replace(FROM_DISK, chunk=1024)
    found = forecast_prefill(RATES, FULL, placement, 1024)
    assert found.way == "stream"
    assert found.ttft_s == pytest.approx(routed_bytes(FULL) / 2 / 5e9)
    two_chunks = forecast_prefill(RATES, FULL, placement, 2048)
    assert two_chunks.ttft_s == pytest.approx(2 * found.ttft_s)


def test_a_step_reads_the_missing_half_of_its_experts_from_disk():
    term = decode.step(RATES, FULL, FROM_DISK, 1024)
    assert term.find("disk").seconds == pytest.approx(58 * 8 * sizes_of(FULL).expert.num_bytes / 2 / 5e9)
    resident = decode.step(RATES, FULL, replace(FROM_DISK, resident_share=1.0), 1024)
    assert term.seconds > 10 * resident.seconds


def test_without_a_disks_rate_nothing_comes_from_disk():
    with pytest.raises(ValueError, match="disk"):
        decode.step(replace(RATES, disk=None), FULL, FROM_DISK, 1024)


# GPUs


def test_a_short_prompt_takes_one_stream():
    term = prefill.streamed(RATES, FULL, ONE_GPU, 1024)
    assert term.seconds == pytest.approx(routed_bytes(FULL) / 25e9, rel=1e-3)  # 26 s at 25 GB/s
    assert prefill.streamed(RATES, FULL, TWO_GPUS, 1024).seconds == pytest.approx(term.seconds / 2, rel=1e-2)


def test_gpus_that_share_a_root_do_not_stream_faster_together():
    shared = replace(RATES, h2d_together=measured(25e9))
    alone = prefill.streamed(shared, FULL, ONE_GPU, 1024).find("stream").seconds
    assert prefill.streamed(shared, FULL, TWO_GPUS, 1024).find("stream").seconds >= alone


def test_no_stream_is_faster_than_dram():
    fast = replace(GPU, h2d=measured(500e9))
    rates = replace(RATES, cpu=replace(CPU, stream=measured(60e9)), gpus=(fast, fast))
    for placement in (ONE_GPU, TWO_GPUS):
        stream = prefill.streamed(rates, FULL, placement, 1024).find("stream").seconds
        assert stream >= routed_bytes(FULL) / 60e9


def test_rows_pass_through_host_memory_unless_gpus_reach_each_other():
    """Half the rows, there and back, in 58 layers: out of the other GPU, then in."""
    term = prefill.streamed(RATES, FULL, TWO_GPUS, 32_768)
    num_bytes = 58 * 2 * 16_384 * 7168 * 2
    assert term.find("rows out").seconds == term.find("rows in").seconds == pytest.approx(num_bytes / 25e9)
    near = replace(GPU, peer=measured(100e9))
    term = prefill.streamed(replace(RATES, gpus=(near, near)), FULL, TWO_GPUS, 32_768)
    assert term.find("to other GPUs").seconds == pytest.approx(num_bytes / 100e9)
    with pytest.raises(KeyError):
        term.find("rows in")


def test_a_ring_that_holds_less_than_a_layer_makes_experts_wait():
    """max(transfer, attention + max(experts, transfer - ring)): attention hides what the ring holds, no more."""
    gpu = replace(GPU, gemm=measured(1e15))  # experts wait, attention does not
    tight, roomy = (
        prefill.streamed(replace(RATES, gpus=(replace(gpu, vram_bytes=size << 30),)), FULL, ONE_GPU, 32_768)
        for size in (32, 96)
    )
    late = tight.find("not held by the ring").seconds
    assert 0 < late < tight.find("stream").seconds
    with pytest.raises(KeyError):
        roomy.find("not held by the ring")
    assert tight.seconds - roomy.seconds == pytest.approx(late - roomy.find("tiles").seconds)
    assert tight.seconds > roomy.seconds + 5


def test_a_prompt_whose_scratch_does_not_fit_takes_more_passes():
    rates = replace(RATES, gpus=(replace(GPU, gemm=measured(1e18), attention=measured(1e18)),))
    streams = [prefill.streamed(rates, FULL, ONE_GPU, n).find("stream").seconds for n in (32_768, 131_072)]
    assert streams[1] == pytest.approx(6 * streams[0])


def test_a_gpu_that_is_too_small_is_refused():
    small = replace(RATES, gpus=(replace(GPU, vram_bytes=16 << 30),))
    with pytest.raises(OutOfMemoryError, match=r"17\.2 GB of GPU memory") as caught:
        forecast_prefill(small, FULL, ONE_GPU, 1024)
    assert caught.value.hint


# order


def seconds(rates, placement, config=FULL):
    found = predict(rates, config, placement, prompts=(64, 1024, 32_768), contexts=(1024, 32_768), streams=(1, 4))
    return [forecast.term.seconds for forecast in (*found.prefill, *found.decode)]


FASTER = {
    "DRAM": replace(RATES, cpu=replace(CPU, stream=measured(800e9))),
    "cores": replace(RATES, cpu=replace(CPU, fma=measured(8e12))),
    "links": replace(RATES, gpus=(replace(GPU, h2d=measured(50e9)),) * 2),
    "GEMMs": replace(RATES, gpus=(replace(GPU, gemm=measured(200e12)),) * 2),
    "GPU memory": replace(RATES, gpus=(replace(GPU, memory=measured(2e12)),) * 2),
    "disk": replace(RATES, disk=measured(10e9)),
}


@pytest.mark.parametrize("placement", [ON_CPU, ONE_GPU, TWO_GPUS, FROM_DISK], ids=["cpu", "gpu", "gpus", "disk"])
def test_what_is_faster_never_takes_longer(placement):
    before = seconds(RATES, placement)
    for name, rates in FASTER.items():
        after = seconds(rates, placement)
        assert all(new <= old for new, old in zip(after, before, strict=True)), name
    for name in {0: ("DRAM", "cores"), 1: ("DRAM", "links", "GEMMs"), 2: ("DRAM", "links", "GEMMs")}[
        placement.num_gpus
    ]:
        assert sum(seconds(FASTER[name], placement)) < sum(before), name


@pytest.mark.parametrize("placement", [ON_CPU, ONE_GPU, TWO_GPUS, FROM_DISK], ids=["cpu", "gpu", "gpus", "disk"])
def test_more_tokens_never_take_less_time(placement):
    prompts = [1, 2, 3, 8, 9, 100, 511, 512, 513, 600, 4095, 4096, 4097, 30_000, 60_000, 60_001, 131_072]
    times = [forecast_prefill(RATES, FULL, placement, n).ttft_s for n in prompts]
    assert times == sorted(times)
    for streams in (1, 2, 4):
        steps = [forecast_decode(RATES, FULL, placement, n, streams).term.seconds for n in (1, 1024, 8192, 131_072)]
        assert steps == sorted(steps)


@pytest.mark.parametrize("placement", [ON_CPU, ONE_GPU], ids=["cpu", "gpu"])
def test_streams_share_weights_and_little_else(placement):
    steps = {n: forecast_decode(RATES, FULL, placement, 1024, n) for n in (1, 2, 4)}
    for n in (2, 4):
        assert steps[1].term.seconds < steps[n].term.seconds < n * steps[1].term.seconds
        assert steps[n].tok_s > steps[n // 2].tok_s
        share = distinct_experts(FULL, n) / 8
        read = [steps[k].term.find("experts").find("read").seconds for k in (1, n)]
        assert read[1] == pytest.approx(share * read[0])


# the crossover


def test_the_crossover_is_where_streaming_becomes_the_faster_way():
    n = crossover(RATES, FULL, ONE_GPU)
    assert n is not None and 100 < n < 20_000
    assert forecast_prefill(RATES, FULL, ONE_GPU, n).way == "stream"
    assert forecast_prefill(RATES, FULL, ONE_GPU, n - 1).way == "cpu+gpu"
    on_both = [f(RATES, FULL, ONE_GPU, n).seconds for f in (prefill.streamed, prefill.with_attention_on_gpu)]
    assert on_both[0] == pytest.approx(on_both[1], rel=1e-2)
    assert predict(RATES, FULL, ONE_GPU).crossover_tokens == n


def test_faster_links_move_the_crossover_down_and_faster_cores_move_it_up():
    n = crossover(RATES, FULL, ONE_GPU)
    assert crossover(FASTER["links"], FULL, ONE_GPU) < 0.8 * n
    assert crossover(FASTER["cores"], FULL, ONE_GPU) > 1.2 * n
    assert crossover(RATES, FULL, TWO_GPUS) < 0.8 * n


def test_a_link_that_is_slow_enough_is_never_worth_it():
    slow = replace(RATES, gpus=(replace(GPU, h2d=measured(1e8)),))
    short = replace(FULL, max_position=8192)
    assert crossover(slow, short, ONE_GPU) is None
    assert predict(slow, short, ONE_GPU).crossover_tokens is None


# doors


def test_prompts_beyond_the_models_context_are_left_out():
    found = predict(RATES, MOONLIGHT, ON_CPU)
    assert [forecast.num_tokens for forecast in found.prefill] == [1024, 8192]
    assert {forecast.context for forecast in found.decode} == {1024, 8192}
    assert [forecast.num_streams for forecast in found.decode[:3]] == [1, 2, 4]
    assert found.crossover_tokens is None
    assert found.prefill[0].tok_s == pytest.approx(1024 / found.prefill[0].ttft_s)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="has 2 GPUs, not 3"):
        forecast_prefill(RATES, FULL, Placement(num_gpus=3), 10)
    with pytest.raises(ValueError, match="start at 1"):
        forecast_prefill(RATES, FULL, ON_CPU, 0)
    with pytest.raises(ValueError, match="start at 1"):
        forecast_decode(RATES, FULL, ON_CPU, 10, 0)
    with pytest.raises(ValueError, match="nothing to stream"):
        crossover(RATES, FULL, ON_CPU)
    with pytest.raises(ValueError, match="routed experts"):
        crossover(RATES, replace(FULL, num_dense_layers=61), ONE_GPU)
    with pytest.raises(ValueError, match="resident_share"):
        Placement(resident_share=1.5)
    with pytest.raises(ValueError, match="above 0"):
        Placement(chunk=0)


def test_a_model_without_experts_is_all_dense():
    dense = replace(FULL, num_dense_layers=61)
    term = forecast_decode(RATES, dense, ON_CPU, 1024).term
    with pytest.raises(KeyError):
        term.find("experts")
    assert forecast_prefill(RATES, dense, ON_CPU, 1024).term.find("dense layers").seconds > 0


def test_it_is_arithmetic_alone():
    code = "import sys, localmoe.engine.cost.slp_paper as p; print({'torch', 'localmoe._native'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

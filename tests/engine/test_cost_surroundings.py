"""What the model of cost knows beside matrices: formats, cold latents, activations, and what surrounds a step."""

from dataclasses import replace

import pytest
from test_cost import CPU, FULL, KERNELS, MOONLIGHT, ON_CPU, RATES, measured

from localmoe.engine.cost import cpu as on_cpu
from localmoe.engine.cost import decode, prefill
from localmoe.engine.cost.sizes import activation_bytes, cache_token_bytes, sizes_of, token_attention_flops


def rates(**changes):
    return replace(RATES, cpu=replace(CPU, **changes))


def test_weights_in_bf16_have_kernels_of_their_own():
    slow = replace(KERNELS, bf16_matmul=((1, measured(0.001)),))
    fp8, bf16 = (decode.step(rates(kernels=slow), config, ON_CPU, 64) for config in (FULL, MOONLIGHT))
    plain = [decode.step(RATES, config, ON_CPU, 64) for config in (FULL, MOONLIGHT)]
    assert bf16.seconds > 5 * plain[1].seconds
    assert fp8.find("experts").seconds == plain[0].find("experts").seconds
    assert fp8.find("head").seconds > plain[0].find("head").seconds  # BF16 in every model


def test_latents_come_beside_the_arithmetic_where_that_was_measured():
    term = on_cpu.token_attention(replace(CPU, kernels=replace(KERNELS, latents=measured(0.5))), FULL, 4096, 2, 1000)
    read, arithmetic = 2 * 4096 * 1000 / (0.5 * 400e9), 2 * 61 * token_attention_flops(FULL, 4096) / (0.5 * 4e12)
    assert term.seconds == pytest.approx(read + arithmetic)
    at_once = on_cpu.token_attention(CPU, FULL, 4096, 2, cache_token_bytes(FULL, 4))
    assert at_once.how == "max"


def test_activations_grow_with_the_prompt():
    found = [
        prefill.on_the_cpu(rates(activations=measured(1e10)), FULL, ON_CPU, n).find("activations").seconds
        for n in (512, 1024)
    ]
    assert found[0] == pytest.approx(61 * 512 * activation_bytes(FULL) / 1e10)
    assert found[1] == pytest.approx(2 * found[0])
    with pytest.raises(KeyError):
        prefill.on_the_cpu(RATES, FULL, ON_CPU, 512).find("activations")


def test_activations_of_deepseek_v3():
    """About 1.3 MB a layer and token, most of it the rows of 8 experts."""
    routed = 4 * 8 * (4 * 7168 + 6 * 2048)
    assert routed / activation_bytes(FULL) > 0.4
    assert activation_bytes(FULL) < sizes_of(FULL).expert.num_bytes / 10


@pytest.mark.parametrize("streams", [1, 4])
def test_a_step_has_a_program_around_it_and_a_choice_for_each_stream(streams):
    cpu = {"step": measured(300e-6), "logit": measured(10e-9)}
    with_it = decode.step(rates(**cpu), FULL, ON_CPU, 64, streams)
    without = decode.step(RATES, FULL, ON_CPU, 64, streams)
    assert with_it.seconds - without.seconds == pytest.approx(300e-6 + streams * FULL.vocab * 10e-9)
    assert with_it.find("choice").seconds == pytest.approx(streams * FULL.vocab * 10e-9)
    on_gpu = replace(ON_CPU, num_gpus=1)
    gpu_s = decode.step(rates(**cpu), FULL, on_gpu, 64).seconds - decode.step(RATES, FULL, on_gpu, 64).seconds
    assert gpu_s == pytest.approx(300e-6 + FULL.vocab * 10e-9)

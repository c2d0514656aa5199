"""Reading config.json: what runs, in our words; what does not, with a sentence that names the key."""

import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DEEPSEEK_V3, FP8, SHAPES, V2, V3, YARN

from localmoe.errors import CheckpointError, ModelError, UnsupportedModelError
from localmoe.model.config import Yarn, read_config
from localmoe.model.tensors import expected_tensors

KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
}


def without(config: dict, key: str) -> dict:
    return {k: v for k, v in config.items() if k != key}


def tiny(name: str) -> dict:
    return V3 | {k: v for k, v in SHAPES[name].items() if k not in ("shards", "ue8m0")}


def test_deepseek_v3_has_671_billion_parameters_and_37_active():
    config = read_config(DEEPSEEK_V3)
    assert round(config.num_params() / 1e9) == 671
    assert round(config.num_active_params() / 1e9) == 37
    assert config.num_layers == 61  # the MTP layer is not counted
    assert config.latent_width == 576


def test_kimi_k2_has_a_trillion_parameters_and_32_billion_active():
    config = read_config(KIMI_K2)
    assert round(config.num_params() / 1e12, 2) == 1.03
    assert round(config.num_active_params() / 1e9) in (32, 33)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_the_tensors(name):
    config = read_config(tiny(name))
    weights = [spec for spec in expected_tensors(config) if not spec.name.endswith("_scale_inv")]
    assert config.num_params() == sum(math.prod(spec.shape) for spec in weights)


def test_every_linear_of_an_fp8_model_has_scales_for_whole_and_partial_blocks():
    specs = {spec.name: spec for spec in expected_tensors(read_config(DEEPSEEK_V3))}
    kv_a = "model.layers.0.self_attn.kv_a_proj_with_mqa"
    assert specs[kv_a + ".weight"].shape == (576, 7168)
    assert specs[kv_a + ".weight"].dtypes == ("F8_E4M3",)
    assert specs[kv_a + ".weight_scale_inv"].shape == (5, 56)
    assert specs["lm_head.weight"].dtypes == ("BF16", "F32")
    assert "lm_head.weight_scale_inv" not in specs
    assert specs["model.layers.3.mlp.gate.e_score_correction_bias"].shape == (256,)
    assert not any(name.startswith("model.layers.61.") for name in specs)  # the MTP layer


def test_tied_embeddings_need_no_head():
    names = {spec.name for spec in expected_tensors(read_config(V3 | {"tie_word_embeddings": True}))}
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_deepseek_v2_chooses_by_softmax_without_bias():
    config = read_config(V3 | V2)
    assert (config.scoring, config.norm_top_k, config.has_router_bias) == ("softmax", False, False)
    assert config.q_lora_rank is None
    assert config.weight_format == "bf16"


def test_greedy_ignores_groups_and_group_limited_takes_the_best_of_each():
    assert read_config(V3 | V2 | {"n_group": 8, "topk_group": 3}).num_groups == 1
    grouped = read_config(tiny("v2-groups"))
    assert (grouped.num_groups, grouped.top_groups, grouped.group_score) == (4, 2, "max")


def test_rope_reads_the_same_from_all_three_spellings():
    old = read_config(V3)
    renamed = read_config(V3 | {"rope_scaling": without(YARN, "type") | {"rope_type": "yarn"}})
    new = read_config(
        without(without(V3, "rope_scaling"), "rope_theta")
        | {"rope_parameters": without(YARN, "type") | {"rope_type": "yarn", "rope_theta": 10000.0}}
    )
    assert old == renamed == new
    assert old.yarn == Yarn(40.0, 4096, 32.0, 1.0, 1.0, 1.0)


def test_no_yarn_without_rope_scaling():
    assert read_config(V3 | {"rope_scaling": None}).yarn is None
    assert read_config(without(V3, "rope_scaling") | {"rope_parameters": {"rope_type": "default"}}).yarn is None


def test_a_config_saved_by_transformers_reads_the_same(tmp_path):
    from transformers import DeepseekV3Config

    ours = without(without(V3, "quantization_config"), "torch_dtype")
    DeepseekV3Config(**copy.deepcopy(without(ours, "model_type"))).save_pretrained(tmp_path)  # it writes into dicts
    saved = json.loads((tmp_path / "config.json").read_text())
    assert read_config(saved) == read_config(ours)


@pytest.mark.parametrize(("eos", "expected"), [(1, (1,)), ([1, 7], (1, 7)), (None, ())])
def test_end_of_sequence_is_one_id_several_or_none(eos, expected):
    assert read_config(V3 | {"eos_token_id": eos}).eos_ids == expected


def test_powers_of_two_as_scales_are_ordinary_fp8():
    assert read_config(V3 | {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}}).weight_format == "fp8"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "llama"}, ["model_type", "'llama'", "deepseek_v3"]),
        ({"model_type": "deepseek_v32"}, ["model_type", "'deepseek_v32'"]),
        ({"model_type": ["deepseek_v3"]}, ["model_type"]),
        ({"attention_bias": True}, ["attention_bias", "True"]),
        ({"mlp_bias": True}, ["mlp_bias"]),
        ({"moe_layer_freq": 2}, ["moe_layer_freq", "2"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'"]),
        ({"scoring_func": "softmax"}, ["scoring_func", "'softmax'", "sigmoid"]),
        ({"topk_method": "greedy"}, ["topk_method", "'greedy'", "noaux_tc"]),
        (V2 | {"topk_method": "noaux_tc"}, ["topk_method", "'noaux_tc'"]),
        (V2 | {"norm_topk_prob": True}, ["norm_topk_prob"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads", "2"]),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ["rope_scaling.type", "'linear'", "yarn"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["rope_scaling.rope_type", "'llama3'"]),
        ({"rope_scaling": None, "rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["quantization_config.quant_method", "'gptq'"]),
        ({"quantization_config": FP8 | {"fmt": "e5m2"}}, ["quantization_config.fmt", "'e5m2'"]),
        ({"quantization_config": FP8 | {"scale_fmt": "int8"}}, ["quantization_config.scale_fmt", "'int8'"]),
        ({"quantization_config": FP8 | {"activation_scheme": "static"}}, ["activation_scheme", "'static'"]),
        ({"quantization_config": FP8 | {"weight_block_size": [64, 64]}}, ["weight_block_size", "[64, 64]", "128"]),
        ({"quantization_config": without(FP8, "weight_block_size")}, ["weight_block_size", "per channel"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_localmoe_does_not_run_is_refused_by_name(change, words):
    with pytest.raises(UnsupportedModelError) as refusal:
        read_config(V3 | change)
    assert_helpful(refusal.value, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": -1}, ["hidden_size", "-1", "at least 1"]),
        ({"hidden_size": 7168.5}, ["hidden_size", "7168.5", "whole number"]),
        ({"hidden_size": True}, ["hidden_size", "True"]),
        ({"hidden_size": "7168"}, ["hidden_size", "'7168'"]),
        ({"hidden_size": 10**30}, ["hidden_size", "at most"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "at most"]),
        ({"num_hidden_layers": 900, "n_routed_experts": 10_000}, ["n_routed_experts", "at most"]),
        ({"q_lora_rank": 0}, ["q_lora_rank", "0"]),
        ({"first_k_dense_replace": -1}, ["first_k_dense_replace", "-1"]),
        ({"num_experts_per_tok": 17}, ["num_experts_per_tok", "17", "n_routed_experts", "16"]),
        ({"n_group": 3}, ["n_group", "3", "divide", "16"]),
        ({"topk_group": 5}, ["topk_group", "5", "n_group", "4"]),
        ({"topk_group": 1, "num_experts_per_tok": 5}, ["topk_group", "leaves 4 experts"]),
        ({"n_group": 16, "topk_group": 8}, ["n_group", "16", "needs two"]),
        ({"qk_rope_head_dim": 15}, ["qk_rope_head_dim", "15", "even"]),
        ({"routed_scaling_factor": float("nan")}, ["routed_scaling_factor", "nan"]),
        ({"routed_scaling_factor": 10**400}, ["routed_scaling_factor"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps", "0"]),
        ({"rope_theta": 1}, ["rope_theta", "1"]),
        ({"rope_scaling": [40]}, ["rope_scaling", "object"]),
        ({"rope_scaling": without(YARN, "factor")}, ["rope_scaling.factor", "missing"]),
        ({"rope_scaling": YARN | {"factor": "40"}}, ["rope_scaling.factor", "'40'"]),
        ({"rope_scaling": YARN | {"factor": 1e-300}}, ["rope_scaling.factor", "1e-300"]),
        ({"rope_scaling": YARN | {"mscale": 1e300}}, ["rope_scaling.mscale", "at most"]),
        ({"rope_scaling": YARN | {"mscale_all_dim": 1e300}}, ["rope_scaling.mscale_all_dim", "at most"]),
        ({"tie_word_embeddings": "no"}, ["tie_word_embeddings", "'no'"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id", "'</s>'"]),
        ({"eos_token_id": [1, -2]}, ["eos_token_id", "-2"]),
        ({"bos_token_id": []}, ["bos_token_id", "[]"]),
        ({"quantization_config": "fp8"}, ["quantization_config", "'fp8'"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_makes_no_sense_is_refused_by_name(change, words):
    with pytest.raises(CheckpointError) as refusal:
        read_config(V3 | change)
    assert_helpful(refusal.value, words)


@pytest.mark.parametrize(
    "key",
    [
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "first_k_dense_replace",
        "intermediate_size",
        "moe_intermediate_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
        "num_attention_heads",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_a_missing_key_is_named(key):
    with pytest.raises(CheckpointError) as refusal:
        read_config(without(V3, key))
    assert_helpful(refusal.value, [key, "missing"])


@pytest.mark.parametrize("data", [[], None, "deepseek_v3", {}])
def test_a_config_that_is_none_is_a_checkpoint_error(data):
    with pytest.raises(CheckpointError):
        read_config(data)


def assert_helpful(error, words):
    assert error.exit_code == 4
    assert error.hint
    assert "\n" not in error.message
    for word in words:
        assert word in error.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*YARN, *FP8]), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([V3, V3 | V2]),
    st.dictionaries(st.sampled_from([*V3, "rope_parameters", "rope_interleave", "n_shared_experts"]), JSON, max_size=3),
)
def test_whatever_stands_in_a_config_it_is_read_or_refused(config, damage):
    try:
        expected_tensors(replace(read_config(config | damage), num_layers=1))
    except ModelError as error:
        assert_helpful(error, ["config.json"])

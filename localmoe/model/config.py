"""What a checkpoint says about itself: its config.json, read once, checked, and named in our words."""

from collections.abc import Mapping
from typing import Any, Literal

from localmoe.errors import CheckpointError
from localmoe.model.architecture import ModelConfig, Yarn
from localmoe.model.fields import DOWNLOAD_AGAIN, Fields

__all__ = ["BLOCK", "ModelConfig", "Yarn", "read_config"]

BLOCK = 128  # rows and columns that share one FP8 scale
MAX_LAYERS = 1000
MIN_FACTOR, MAX_MSCALE = 1e-3, 1e3  # of YaRN: beyond them RoPE and softmax are not numbers any more
MAX_ROUTED = 200_000  # layers times experts; Kimi-K2 has 23,040

SCORING = {"deepseek_v3": "sigmoid", "kimi_k2": "sigmoid", "deepseek_v2": "softmax"}
TOPK_METHODS = {
    "deepseek_v3": ("noaux_tc",),
    "kimi_k2": ("noaux_tc",),
    "deepseek_v2": ("greedy", "group_limited_greedy"),
}
NOT_YET = {
    "deepseek_v32": "DeepSeek-V3.2's sparse attention is not supported yet. DeepSeek-V3.1 runs.",
    "deepseek_v4": "DeepSeek-V4's FP4 experts and attention are not supported yet. DeepSeek-V3.1 runs.",
}


def read_config(data: Mapping[str, Any]) -> ModelConfig:
    """The network that a config.json describes.

    Raises UnsupportedModelError for an architecture or quantisation that localmoe does not run, and
    CheckpointError for keys that are missing or make no sense. Both name the key.
    """
    if not isinstance(data, Mapping):
        raise CheckpointError("config.json does not hold a JSON object.", DOWNLOAD_AGAIN)
    fields = Fields(data)
    model_type = _model_type(fields)
    _refuse_other_networks(fields)
    layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    return ModelConfig(
        model_type=model_type,
        num_layers=layers,
        num_dense_layers=min(layers, fields.integer("first_k_dense_replace", low=0)),
        hidden=fields.integer("hidden_size"),
        dense_inter=fields.integer("intermediate_size"),
        moe_inter=fields.integer("moe_intermediate_size"),
        num_shared_experts=_num_shared(fields),
        **_routing(fields, model_type, layers),
        **_attention(fields),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        **_rope(fields, model_type),
        max_position=fields.integer("max_position_embeddings"),
        vocab=fields.integer("vocab_size"),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        weight_format=_weight_format(fields),
        bos_id=_token_ids(fields, "bos_token_id")[0] if fields.has("bos_token_id") else None,
        eos_ids=_token_ids(fields, "eos_token_id"),
    )


def _model_type(fields: Fields) -> str:
    known = tuple(SCORING)
    value = fields.data.get("model_type")
    if isinstance(value, str) and value in NOT_YET:
        fields.unsupported("model_type", f"localmoe runs {', '.join(known)}", NOT_YET[value])
    return fields.choice("model_type", known)


def _refuse_other_networks(fields: Fields) -> None:
    if fields.flag("attention_bias", False):
        fields.unsupported("attention_bias", "localmoe runs attention without biases")
    if fields.flag("mlp_bias", False):
        fields.unsupported("mlp_bias", "localmoe runs feed-forward layers without biases")
    if fields.integer("moe_layer_freq", 1) != 1:
        fields.unsupported("moe_layer_freq", "localmoe runs models whose later layers all have experts")
    fields.choice("hidden_act", ("silu",), "silu")


def _num_shared(fields: Fields) -> int:
    """None where the key is null, as DeepSeek-V2's code has it; a config without the key is damaged."""
    if "n_shared_experts" in fields.data and not fields.has("n_shared_experts"):
        return 0
    return fields.integer("n_shared_experts", low=0, high=1024)


def _routing(fields: Fields, model_type: str, layers: int) -> dict[str, Any]:
    scoring = fields.choice("scoring_func", (SCORING[model_type],), SCORING[model_type])
    method = fields.choice("topk_method", TOPK_METHODS[model_type], TOPK_METHODS[model_type][0])
    experts = fields.integer("n_routed_experts", high=MAX_ROUTED)
    if layers * experts > MAX_ROUTED:
        fields.wrong("n_routed_experts", f"must be at most {MAX_ROUTED // layers} with {layers} layers")
    top_k = fields.integer("num_experts_per_tok")
    if top_k > experts:
        fields.wrong("num_experts_per_tok", f"cannot exceed `n_routed_experts`, {experts}")
    normalize = fields.flag("norm_topk_prob", model_type != "deepseek_v2")
    if normalize and model_type == "deepseek_v2":
        fields.unsupported("norm_topk_prob", "localmoe runs deepseek_v2 without normalised expert weights")
    groups, top_groups = (1, 1) if method == "greedy" else _groups(fields, experts, top_k, scoring)
    return {
        "num_experts": experts,
        "top_k": top_k,
        "num_groups": groups,
        "top_groups": top_groups,
        "scoring": scoring,
        "group_score": "top2" if method == "noaux_tc" else "max",
        "norm_top_k": normalize,
        "routed_scale": fields.number("routed_scaling_factor"),
        "has_router_bias": method == "noaux_tc",
    }


def _groups(fields: Fields, experts: int, top_k: int, scoring: str) -> tuple[int, int]:
    groups = fields.integer("n_group")
    top_groups = fields.integer("topk_group")
    if experts % groups:
        fields.wrong("n_group", f"must divide `n_routed_experts`, {experts}")
    if top_groups > groups:
        fields.wrong("topk_group", f"cannot exceed `n_group`, {groups}")
    size = experts // groups
    if top_groups * size < top_k:
        fields.wrong("topk_group", f"leaves {top_groups * size} experts to choose `num_experts_per_tok`, {top_k}, from")
    if groups > 1 and size < 2 and scoring == "sigmoid":
        fields.wrong(
            "n_group", f"leaves one of `n_routed_experts`, {experts}, to a group, and a group's score needs two"
        )
    return groups, top_groups


def _attention(fields: Fields) -> dict[str, Any]:
    heads = fields.integer("num_attention_heads")
    if fields.integer("num_key_value_heads", heads) != heads:
        fields.unsupported(
            "num_key_value_heads", f"localmoe runs latent attention, where it is {heads}, the query heads"
        )
    rope_dim = fields.integer("qk_rope_head_dim")
    if rope_dim % 2:
        fields.wrong("qk_rope_head_dim", "must be even: RoPE rotates pairs")
    return {
        "num_heads": heads,
        "q_lora_rank": fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
        "kv_lora_rank": fields.integer("kv_lora_rank"),
        "nope_dim": fields.integer("qk_nope_head_dim"),
        "rope_dim": rope_dim,
        "v_dim": fields.integer("v_head_dim"),
    }


def _rope(fields: Fields, model_type: str) -> dict[str, Any]:
    """RoPE's settings, from `rope_theta` and `rope_scaling` or from transformers 5's `rope_parameters`."""
    scaling = fields.object("rope_scaling" if fields.data.get("rope_scaling") else "rope_parameters")
    theta = scaling if scaling.has("rope_theta") else fields
    kind = scaling.choice("rope_type" if scaling.has("rope_type") else "type", ("default", "yarn"), "default")
    if scaling.number("partial_rotary_factor", 1.0) != 1.0:
        scaling.unsupported("partial_rotary_factor", "localmoe rotates all of `qk_rope_head_dim`")
    return {
        "rope_theta": theta.number("rope_theta", 10000.0, above=1.0),
        "rope_interleaved": fields.flag("rope_interleave", True) or model_type == "deepseek_v2",
        "yarn": _yarn(fields, scaling) if kind == "yarn" else None,
    }


def _yarn(fields: Fields, scaling: Fields) -> Yarn:
    return Yarn(
        factor=scaling.number("factor", above=MIN_FACTOR),
        original_max_position=scaling.integer(
            "original_max_position_embeddings", fields.integer("max_position_embeddings")
        ),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        mscale=scaling.number("mscale", 0.0, above=-1.0, high=MAX_MSCALE),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0, above=-1.0, high=MAX_MSCALE),
        attention_factor=(
            scaling.number("attention_factor", high=MAX_MSCALE) if scaling.has("attention_factor") else None
        ),
        truncate=scaling.flag("truncate", True),
    )


def _weight_format(fields: Fields) -> Literal["fp8", "bf16"]:
    quant = fields.object("quantization_config")
    if not quant.data:
        return "bf16"
    quant.choice("quant_method", ("fp8",))
    quant.choice("fmt", ("e4m3",), "e4m3")
    quant.choice("activation_scheme", ("dynamic",), "dynamic")
    quant.choice("scale_fmt", ("ue8m0", "float"), "float")
    if quant.data.get("weight_block_size") != [BLOCK, BLOCK]:
        what = "is per channel or per tensor" if not quant.has("weight_block_size") else "has other blocks"
        quant.unsupported(
            "weight_block_size", f"this quantisation {what}, and localmoe runs FP8 in blocks of [128, 128]"
        )
    return "fp8"


def _token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """The ids at `key`: one, a list or none. Those outside the vocabulary are kept: they just never come."""
    value = fields.data.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in ids) or value == []:
        fields.wrong(key, "must be a token id or a list of them")
    return tuple(ids)

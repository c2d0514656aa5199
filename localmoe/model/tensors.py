"""Which tensors a checkpoint must hold: names, shapes and dtypes, from the config alone.

Names are those of the Hugging Face layout. The MTP layer, index `num_layers`, is not among them.
"""

from collections.abc import Iterator

from localmoe.hub.checkpoint import TensorSpec
from localmoe.model.config import BLOCK, ModelConfig

PLAIN = ("BF16", "F32")  # what is never quantised


def expected_tensors(config: ModelConfig) -> list[TensorSpec]:
    """Every tensor that the network reads."""
    return list(_model(config))


def expert_prefixes(config: ModelConfig) -> list[str]:
    """Of the routed experts' names, for each layer that has some."""
    return [f"model.layers.{n}.mlp.experts" for n in range(config.num_dense_layers, config.num_layers)]


def _model(config: ModelConfig) -> Iterator[TensorSpec]:
    yield _plain("model.embed_tokens.weight", config.vocab, config.hidden)
    for n in range(config.num_layers):
        prefix = f"model.layers.{n}."
        yield _plain(prefix + "input_layernorm.weight", config.hidden)
        yield _plain(prefix + "post_attention_layernorm.weight", config.hidden)
        yield from _attention(config, prefix + "self_attn.")
        if n < config.num_dense_layers:
            yield from _ffn(config, prefix + "mlp.", config.dense_inter)
        else:
            yield from _mixture(config, prefix + "mlp.")
    yield _plain("model.norm.weight", config.hidden)
    if not config.tie_embeddings:
        yield _plain("lm_head.weight", config.vocab, config.hidden)


def _attention(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    hidden, rank = config.hidden, config.kv_lora_rank
    if config.q_lora_rank is None:
        yield from _linear(config, prefix + "q_proj", config.q_dim, hidden)
    else:
        yield from _linear(config, prefix + "q_a_proj", config.q_lora_rank, hidden)
        yield _plain(prefix + "q_a_layernorm.weight", config.q_lora_rank)
        yield from _linear(config, prefix + "q_b_proj", config.q_dim, config.q_lora_rank)
    yield from _linear(config, prefix + "kv_a_proj_with_mqa", config.latent_width, hidden)
    yield _plain(prefix + "kv_a_layernorm.weight", rank)
    yield from _linear(config, prefix + "kv_b_proj", config.kv_b_dim, rank)
    yield from _linear(config, prefix + "o_proj", hidden, config.num_heads * config.v_dim)


def _mixture(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    yield _plain(prefix + "gate.weight", config.num_experts, config.hidden)
    if config.has_router_bias:
        yield _plain(prefix + "gate.e_score_correction_bias", config.num_experts)
    for e in range(config.num_experts):
        yield from _ffn(config, f"{prefix}experts.{e}.", config.moe_inter)
    if config.num_shared_experts:
        yield from _ffn(config, prefix + "shared_experts.", config.num_shared_experts * config.moe_inter)


def _ffn(config: ModelConfig, prefix: str, inter: int) -> Iterator[TensorSpec]:
    yield from _linear(config, prefix + "gate_proj", inter, config.hidden)
    yield from _linear(config, prefix + "up_proj", inter, config.hidden)
    yield from _linear(config, prefix + "down_proj", config.hidden, inter)


def _linear(config: ModelConfig, name: str, rows: int, cols: int) -> Iterator[TensorSpec]:
    """A weight; with FP8 also its scales, one for each block of 128 x 128, partial blocks included."""
    if config.weight_format == "bf16":
        yield TensorSpec(name + ".weight", (rows, cols), ("BF16",))
    else:
        yield TensorSpec(name + ".weight", (rows, cols), ("F8_E4M3",))
        yield TensorSpec(name + ".weight_scale_inv", (-(-rows // BLOCK), -(-cols // BLOCK)), ("F32",))


def _plain(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, PLAIN)

"""The network, from token ids to logits: DeepSeek-V2, DeepSeek-V3 and Kimi-K2 are one."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localmoe.kernels.ops import LayerCache, Linear, Ops, V
from localmoe.model.attention import Attention, attention, load_attention
from localmoe.model.cache import Latents
from localmoe.model.config import ModelConfig
from localmoe.model.experts import Ffn, Moe, Routed, ffn, load_ffn, load_moe, mixture, routed
from localmoe.weights.store import Store


@dataclass(frozen=True)
class Layer:
    """One block: attention, then either a dense feed-forward layer or a mixture of experts."""

    attention_norm: NDArray[np.float32]
    attention: Attention
    ffn_norm: NDArray[np.float32]
    ffn: Ffn | None
    moe: Moe | None


@dataclass(frozen=True)
class Model:
    """All weights, in the order in which they are used. `head` is the embedding where the two are tied."""

    config: ModelConfig
    embedding: Linear
    layers: tuple[Layer, ...]
    norm: NDArray[np.float32]
    head: Linear


def decode(ops: Ops[V], model: Model, cache: Latents, routed: Routed[V] = routed) -> V:
    """Logits [S, vocab] of the rows that the run asks for. After the last attention only those are computed."""
    eps, last = model.config.rms_eps, len(model.layers) - 1
    x = ops.embedding(model.embedding)
    for n, layer in enumerate(model.layers):
        x = block(ops, x, layer, cache.layer(n), eps, selects=n == last, routed=routed)
    return ops.linear(ops.rms_norm(x, model.norm, eps), model.head)


def block(
    ops: Ops[V],
    x: V,
    layer: Layer,
    cache: LayerCache,
    eps: float,
    selects: bool = False,
    routed: Routed[V] = routed,
) -> V:
    """[T, H] -> [T, H], or [S, H] where it selects."""
    attended = attention(ops, ops.rms_norm(x, layer.attention_norm, eps), layer.attention, cache)
    if selects:
        x, attended = ops.select(x), ops.select(attended)
    x = ops.add(x, ops.linear(attended, layer.attention.out))
    return ops.add(x, feed_forward(ops, ops.rms_norm(x, layer.ffn_norm, eps), layer, routed))


def feed_forward(ops: Ops[V], x: V, layer: Layer, routed: Routed[V] = routed) -> V:
    """[T, H] -> [T, H]: the mixture, or the dense layer."""
    if layer.moe is not None:
        return mixture(ops, x, layer.moe, routed)
    assert layer.ffn is not None
    return ffn(ops, x, layer.ffn)


def load_model(config: ModelConfig, store: Store) -> Model:
    """The tree of weights: views into the store, nothing is copied."""
    embedding = store.linear("model.embed_tokens")
    return Model(
        config=config,
        embedding=embedding,
        layers=tuple(_load_layer(config, store, n) for n in range(config.num_layers)),
        norm=store.vector("model.norm.weight"),
        head=embedding if config.tie_embeddings else store.linear("lm_head"),
    )


def _load_layer(config: ModelConfig, store: Store, n: int) -> Layer:
    prefix, dense = f"model.layers.{n}.", n < config.num_dense_layers
    return Layer(
        attention_norm=store.vector(prefix + "input_layernorm.weight"),
        attention=load_attention(config, store, prefix + "self_attn."),
        ffn_norm=store.vector(prefix + "post_attention_layernorm.weight"),
        ffn=load_ffn(store, prefix + "mlp.") if dense else None,
        moe=None if dense else load_moe(config, store, prefix + "mlp."),
    )

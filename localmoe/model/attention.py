"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): only latents and one key are cached."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localmoe.kernels.ops import LayerCache, Linear, MlaShape, Ops, Rope, V
from localmoe.model.config import ModelConfig, Yarn
from localmoe.weights.store import Store

LATENT_NORM_EPS = 1e-6  # of the norms inside attention, whatever `rms_norm_eps` says: so in DeepSeek's own code


@dataclass(frozen=True)
class Attention:
    """One layer's weights, and what all layers share: shape and RoPE."""

    q_a: Linear | None  # None: q projects from the hidden state
    q_a_norm: NDArray[np.float32] | None
    q: Linear  # q_b_proj, or q_proj
    kv_a: Linear  # rows: the latent, then the key that all heads share
    kv_a_norm: NDArray[np.float32]
    kv_b: Linear
    out: Linear
    rope: Rope
    shape: MlaShape


def attention(ops: Ops[V], x: V, w: Attention, cache: LayerCache) -> V:
    """[T, H] -> [T, N * v_dim], before the output projection; appends x's latents to the cache."""
    shape = w.shape
    q = ops.rope(_queries(ops, x, w), w.rope, shape.nope_dim + shape.rope_dim)
    kv = ops.linear(x, w.kv_a)  # [T, R + rope_dim]
    latent = ops.rms_norm(ops.columns(kv, 0, shape.rank), w.kv_a_norm, LATENT_NORM_EPS)
    key = ops.rope(ops.columns(kv, shape.rank, shape.rank + shape.rope_dim), w.rope, shape.rope_dim)
    ops.append_latent(cache, latent, key)
    return ops.mla_attention(q, cache, w.kv_b, shape)


def _queries(ops: Ops[V], x: V, w: Attention) -> V:
    if w.q_a is None or w.q_a_norm is None:
        return ops.linear(x, w.q)
    return ops.linear(ops.rms_norm(ops.linear(x, w.q_a), w.q_a_norm, LATENT_NORM_EPS), w.q)


def load_attention(config: ModelConfig, store: Store, prefix: str) -> Attention:
    """The weights under `prefix`, such as "model.layers.3.self_attn."."""
    low_rank = config.q_lora_rank is not None
    return Attention(
        q_a=store.linear(prefix + "q_a_proj") if low_rank else None,
        q_a_norm=store.vector(prefix + "q_a_layernorm.weight") if low_rank else None,
        q=store.linear(prefix + ("q_b_proj" if low_rank else "q_proj")),
        kv_a=store.linear(prefix + "kv_a_proj_with_mqa"),
        kv_a_norm=store.vector(prefix + "kv_a_layernorm.weight"),
        kv_b=store.linear(prefix + "kv_b_proj"),
        out=store.linear(prefix + "o_proj"),
        rope=rope(config),
        shape=mla_shape(config),
    )


def mla_shape(config: ModelConfig) -> MlaShape:
    """Sizes and the softmax scale: 1 / sqrt(nope + rope), times YaRN's mscale squared."""
    scale = (config.nope_dim + config.rope_dim) ** -0.5
    if config.yarn is not None and config.yarn.mscale_all_dim:
        scale *= _mscale(config.yarn.factor, config.yarn.mscale_all_dim) ** 2
    return MlaShape(config.num_heads, config.nope_dim, config.rope_dim, config.v_dim, config.kv_lora_rank, scale)


def rope(config: ModelConfig) -> Rope:
    """Frequencies of the rotated elements: theta^(-2i / dim), with YaRN blended towards 1 / factor of them."""
    exponents = np.arange(0, config.rope_dim, 2, dtype=np.float32) / np.float32(config.rope_dim)
    wavelengths = (config.rope_theta ** exponents.astype(np.float64)).astype(np.float32)  # over 2 pi
    inv_freq = np.reciprocal(wavelengths)
    if config.yarn is None:
        return Rope(inv_freq, interleaved=config.rope_interleaved)
    kept = 1 - _interpolated(config.yarn, config.rope_dim, config.rope_theta)
    stretched = np.reciprocal(np.float32(config.yarn.factor) * wavelengths)
    return Rope(stretched * (1 - kept) + inv_freq * kept, _rope_scale(config.yarn), config.rope_interleaved)


def _interpolated(yarn: Yarn, dim: int, theta: float) -> NDArray[np.float32]:
    """[dim / 2]: 0 where a frequency stays, 1 where it is divided by `factor`, a ramp between (YaRN, section 3.2)."""
    low, high = (_pair_that_turns(n, yarn, dim, theta) for n in (yarn.beta_fast, yarn.beta_slow))
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:  # beta_fast = beta_slow, as in Kimi-K2
        high += 0.001
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    return np.clip(ramp, 0, 1)


def _pair_that_turns(turns: float, yarn: Yarn, dim: int, theta: float) -> float:
    """The index, not rounded, of the pair that makes `turns` turns within the original context."""
    return dim * math.log(yarn.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _rope_scale(yarn: Yarn) -> float:
    """What cos and sin are multiplied with."""
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return _mscale(yarn.factor, yarn.mscale) / _mscale(yarn.factor, yarn.mscale_all_dim)
    return _mscale(yarn.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

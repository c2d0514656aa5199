"""Memory of a CPU step program before it is recorded: what native/program.h and native/ops ask for, byte by byte.

The activations are placed by the recorder itself, over a model of the same shapes without weights; the ops' scratch
follows their `scratch_floats` and `worker_floats`. A test holds both to the programs' own count.
"""

from dataclasses import replace
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig
from localmoe.model.tensors import expected_tensors
from localmoe.weights.layout import SCALE_SUFFIX
from localmoe.weights.store import Experts, Linear, Store

FLOAT_BYTES = 4
AREA_BYTES = 2 << 20  # each of the three areas lies in whole huge pages
MAX_GEMV_TOKENS, STRIP, GEMM_ROWS, PANEL_STRIDE = 8, 16, 48, 144  # native/kernels.h, native/kernels/gemm-inl.h
STRIP_FLOATS = {"amx_bf16": 24}  # of a column, where it is no FP32 for each token: native/kernels/gemm_amx-inl.h
GEMV_TOKENS = {"amx_bf16": 3}  # most for which it is taken, where fewer than can be: there, too
GEMM_SCRATCH, TILE = GEMM_ROWS * PANEL_STRIDE, GEMM_ROWS * STRIP
GEMM_MULTIPLY_ADDS, GEMV_ROWS = 8_000_000, 256  # of a tile
ABSORBED_ROWS, HEAD_BLOCK, STATES = 128, 32, 64  # native/ops/absorbed.cpp
SPAN, KEY_TILE_MULTIPLY_ADDS = 512, 9_000_000  # native/ops/expanded.cpp
QUERY_ROWS, SCORE_STRIDE = 48, 144  # native/kernels/prefill-inl.h
WORKER_ALIGN = 64  # floats, and as many between two workers


def scratch_bytes(config: ModelConfig, num_tokens: int, num_workers: int, isa: str) -> int:
    """Bytes of a program for up to `num_tokens` on `num_workers`, with the kernels of target `isa`."""
    shapes, strip = _linears(config), STRIP_FLOATS.get(isa, STRIP)
    shared = max(*(_linear(cols, num_tokens, strip) for cols in shapes), _attention(config, num_tokens, strip))
    each = max(*(_linear_worker(cols) for cols in shapes), _attention_worker(config))
    if config.num_moe_layers:
        shared = max(shared, _experts(config, num_tokens, strip, GEMV_TOKENS.get(isa, MAX_GEMV_TOKENS)))
        each = max(each, _experts_worker(config))
    stride = -(-each // WORKER_ALIGN) * WORKER_ALIGN + WORKER_ALIGN
    areas = (_activations(_few_layers(config), num_tokens), shared, stride * num_workers)
    return sum(_area_bytes(floats) for floats in areas)


def _area_bytes(floats: int) -> int:
    return max(1, -(-floats * FLOAT_BYTES // AREA_BYTES)) * AREA_BYTES


def _few_layers(config: ModelConfig) -> ModelConfig:
    """One of each kind, and the last one: between two layers nothing lives but the hidden state, at the same place."""
    moe = min(2, config.num_moe_layers)
    dense = min(1 if moe else 2, config.num_dense_layers)
    return replace(config, num_layers=dense + moe, num_dense_layers=dense)


@lru_cache(maxsize=64)
def _activations(config: ModelConfig, num_tokens: int) -> int:
    """Floats of the buffers that live at the same time."""
    from localmoe.kernels.cpu import CpuOps, plan_buffers
    from localmoe.model.cache import LatentCache
    from localmoe.model.decoder import decode, load_model

    ops = CpuOps()
    model = load_model(config, cast(Store, _Shapes(config)))
    decode(ops, model, LatentCache(config.num_layers, 1, config.latent_width))
    return plan_buffers(ops, num_tokens)[1]


class _Shapes:
    """A store of tensors that have shapes and no memory."""

    def __init__(self, config: ModelConfig) -> None:
        one = replace(config, num_experts=1)  # experts' tensors are not asked for one by one
        self._shapes = {spec.name: spec.shape for spec in expected_tensors(one)}
        self._num_experts = config.num_experts

    def linear(self, name: str) -> Linear:
        rows, cols = self._shapes[f"{name}.weight"]
        scale = self._shapes.get(f"{name}{SCALE_SUFFIX}")
        is_gate = name.endswith(".mlp.gate")
        return Linear(_empty(self._num_experts if is_gate else rows, cols), None if scale is None else _empty(*scale))

    def vector(self, name: str) -> NDArray[np.float32]:
        return _empty(*self._shapes[name])

    def experts(self, prefix: str) -> Experts:
        return Experts(self._num_experts, ())


def _empty(*shape: int) -> NDArray[np.float32]:
    return np.broadcast_to(np.float32(0), shape)


def _linears(config: ModelConfig) -> set[int]:
    """Columns of every linear that is an op of its own."""
    c = config
    cols = {c.hidden, c.num_heads * c.v_dim, *([c.q_lora_rank] if c.q_lora_rank else [])}
    dense = {c.dense_inter} if c.num_dense_layers else set()
    shared = {c.num_shared_experts * c.moe_inter} if c.num_moe_layers and c.num_shared_experts else set()
    return cols | dense | shared


def _linear(cols: int, num_tokens: int, strip: int) -> int:
    return -(-num_tokens // STRIP) * strip * _padded(cols)


def _linear_worker(cols: int) -> int:
    return GEMM_SCRATCH + _tile_strips(cols) * TILE


def _experts(config: ModelConfig, num_tokens: int, strip: int, gemv_tokens: int) -> int:
    """Tokens as gemv reads them, what experts make of them, strips for those with many, and a row of each slot."""
    x, h = _padded(config.hidden), _padded(config.moe_inter)
    slots = num_tokens * config.top_k
    strips = min(slots // min(gemv_tokens + 1, STRIP // 2), slots // STRIP + config.num_experts)
    return num_tokens * x + slots * h + strips * strip * (x + h) + slots * config.hidden


def _experts_worker(config: ModelConfig) -> int:
    strips = max(_tile_strips(config.hidden), _tile_strips(config.moe_inter))
    return max(GEMM_SCRATCH + strips * TILE, 2 * MAX_GEMV_TOKENS * GEMV_ROWS)


def _attention(config: ModelConfig, num_tokens: int, strip: int) -> int:
    """Queries and states of the absorbed form, or one span's keys and values of the expanded one."""
    return max(
        _absorbed(config, num_tokens), _expanded(config, num_tokens, strip) if num_tokens > MAX_GEMV_TOKENS else 0
    )


def _absorbed(config: ModelConfig, num_tokens: int) -> int:
    rows, heads, width = min(num_tokens, ABSORBED_ROWS), config.num_heads, config.latent_width
    row = heads * width + -(-heads // STRIP) * _padded(width) * STRIP
    state = min(HEAD_BLOCK, heads) * config.kv_lora_rank + 2 * HEAD_BLOCK
    return rows * row + max(STATES, rows * -(-heads // HEAD_BLOCK)) * state


def _expanded(config: ModelConfig, num_tokens: int, strip: int) -> int:
    latents = SPAN // STRIP * (strip * _padded(config.kv_lora_rank) + STRIP * _padded(config.rope_dim))
    keys, values = SPAN * (config.nope_dim + config.rope_dim), SPAN * _up(config.v_dim, STRIP)
    return latents + config.num_heads * (keys + values + 2 * num_tokens)


def _attention_worker(config: ModelConfig) -> int:
    head, rank = config.nope_dim + config.rope_dim, config.kv_lora_rank
    page = PAGE_TOKENS * config.latent_width
    queries = QUERY_ROWS * (_up(head, STRIP) + _up(config.v_dim, STRIP) + SCORE_STRIDE)
    return max(
        page, MAX_GEMV_TOKENS * _padded(rank) + rank, GEMM_SCRATCH + TILE * -(-_key_tile(config) // STRIP), queries
    )


def _key_tile(config: ModelConfig) -> int:
    rows = max(config.nope_dim, config.v_dim) * config.kv_lora_rank
    return max(STRIP, min(SPAN, KEY_TILE_MULTIPLY_ADDS // rows // STRIP * STRIP))


def _tile_strips(cols: int) -> int:
    return max(4, GEMM_MULTIPLY_ADDS // (TILE * max(1, cols)))


def _padded(cols: int) -> int:
    return _up(cols, 64)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step

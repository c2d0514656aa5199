"""What a plan says of GPU programs' memory, held to what those ask for. No GPU: nothing is allocated for weights."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import DEEPSEEK_V3, SHAPES, V3

from localmoe.engine.cost import gpu_scratch
from localmoe.engine.plan import beside
from localmoe.kernels.gpu import attention
from localmoe.kernels.gpu.chips import CHIPS
from localmoe.kernels.gpu.ops import GpuOps
from localmoe.kernels.gpu.program import GpuProgram
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.decoder import decode, load_model
from localmoe.model.programs import record_mixtures, record_own
from localmoe.model.tensors import expected_tensors
from localmoe.prefill import early
from localmoe.prefill.cluster import most_own_tokens
from localmoe.weights.layout import SCALE_SUFFIX
from localmoe.weights.store import Experts, Linear

CHIP = CHIPS[120]  # multiplies FP8
MORE = 1.03  # relative: what a plan may count too much of what grows with tokens
LAYERS = {"num_hidden_layers": 5}
CONFIGS: dict[str, dict[str, Any]] = {
    "V3": DEEPSEEK_V3 | LAYERS,
    "V3 in BF16": DEEPSEEK_V3 | LAYERS | {"quantization_config": None},
    "V3 without dense layers": DEEPSEEK_V3 | LAYERS | {"first_k_dense_replace": 0},
    "V3, most layers dense": DEEPSEEK_V3 | LAYERS | {"first_k_dense_replace": 4, "intermediate_size": 65_536},
    "long queries": DEEPSEEK_V3 | LAYERS | {"q_lora_rank": 32_768, "num_experts_per_tok": 1},
    "small": V3 | {"hidden_size": 2048, "moe_intermediate_size": 1408, "intermediate_size": 10_944},
} | {name: V3 | shape for name, shape in SHAPES.items()}


@pytest.mark.parametrize("num_tokens", [1, 8, 33, 1024, 8192, 13_781])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_plan_counts_what_programs_take(name: str, num_tokens: int) -> None:
    config = read_config(CONFIGS[name])
    for cache_tokens in (8192, 131_072):
        model, latents = load_model(config, Shapes(config)), latents_of(cache_tokens)

        def whole(ops, model=model, latents=latents):
            return decode(ops, model, latents)

        def own(ops, model=model, latents=latents):
            return record_own(ops, model, latents)

        def mixtures(ops, model=model):
            record_mixtures(ops, model)

        half = most_own_tokens(num_tokens, 2)
        both = nbytes(own, half, cache_tokens) + nbytes(mixtures, num_tokens, cache_tokens)
        near(gpu_scratch.scratch_bytes(config, num_tokens, 1, cache_tokens), nbytes(whole, num_tokens, cache_tokens))
        near(gpu_scratch.own_bytes(config, num_tokens, cache_tokens), nbytes(own, num_tokens, cache_tokens))
        near(gpu_scratch.scratch_bytes(config, num_tokens, 2, cache_tokens), both, 2)


def near(planned: int, needed: int, num_programs: int = 1) -> None:
    assert needed <= planned <= MORE * needed + num_programs * gpu_scratch.PROGRAM_BYTES, f"{planned:,} for {needed:,}"


def nbytes(record: Any, num_tokens: int, cache_tokens: int) -> int:
    ops = GpuOps(CHIP, num_tokens)
    weights: Any = SimpleNamespace(gpu=Gpu(torch.device("meta"), CHIP), matrix=id, vector=id)
    return GpuProgram(ops, record(ops), weights, cache_tokens // PAGE_TOKENS).nbytes


def latents_of(num_tokens: int) -> Any:
    return SimpleNamespace(layer=lambda _: SimpleNamespace(data=range(num_tokens // PAGE_TOKENS)))


class Shapes:
    """A store of tensors that have shapes and no memory."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._shapes = {spec.name: spec.shape for spec in expected_tensors(config)}

    def linear(self, name: str) -> Linear:
        scale = self._shapes.get(f"{name}{SCALE_SUFFIX}")
        dtype = np.uint16 if scale is None else np.uint8
        return Linear(
            empty(dtype, *self._shapes[f"{name}.weight"]), None if scale is None else empty(np.float32, *scale)
        )

    def vector(self, name: str) -> np.ndarray:
        return empty(np.float32, *self._shapes[name])

    def experts(self, prefix: str) -> Experts:
        c, scale = self._config, 0 if self._config.weight_format == "fp8" else None
        gate, down = (
            SimpleNamespace(offset=0, scale_offset=scale, first_row=0, rows=rows, cols=cols)
            for rows, cols in ((c.moe_inter, c.hidden), (c.hidden, c.moe_inter))
        )
        part: Any = SimpleNamespace(blob=empty(np.uint8, c.num_experts, 1), gate=gate, up=gate, down=down)
        return Experts(c.num_experts, (part,))


def empty(dtype: Any, *shape: int) -> np.ndarray:
    return np.broadcast_to(dtype(0), shape)


def test_numbers_that_plans_keep_without_torch_are_those_of_the_programs() -> None:
    for name in ("MOST_ABSORBED", "MOST_QUERIES", "EXPANDED_BYTES"):
        assert getattr(gpu_scratch, name) == getattr(attention, name)
    assert beside.NUM_TILES == early.NUM_TILES

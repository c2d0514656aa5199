"""Checkpoints that suites measure with when no model is given: random, DeepSeek-V3-shaped, larger than caches.

Speed and memory can be judged with them, not text. Made once, from a seed, in the user's cache folder.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from localmoe.bench import vocabulary
from localmoe.bench.rows import Listener
from localmoe.bench.shard import Tensor, bf16, fp8, ones, write_shard, zeroed_row
from localmoe.errors import LocalmoeError, OutOfMemoryError
from localmoe.hardware import available_memory
from localmoe.settings import cache_dir

VERSION = 2  # a new one for every change of what is written
SEED = 20
MEMORY_SHARE, DISK_SHARE = 1.3, 1.05  # of a checkpoint's bytes that must be free
_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes, named as in config.json, and the weights' format."""

    hidden_size: int = 1536
    num_hidden_layers: int = 6
    first_k_dense_replace: int = 1
    intermediate_size: int = 4096
    n_routed_experts: int = 32
    num_experts_per_tok: int = 4
    n_shared_experts: int = 1
    moe_intermediate_size: int = 768
    n_group: int = 4
    topk_group: int = 2
    num_attention_heads: int = 12
    q_lora_rank: int | None = 768
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    vocab_size: int = 8192
    weight_format: Literal["fp8", "bf16"] = "fp8"

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensors in _shards(self).values() for tensor in tensors)


_MOONLIGHT = Shape(  # and DeepSeek-V2-Lite's, as far as sizes go
    hidden_size=2048,
    num_hidden_layers=4,
    intermediate_size=11264,
    n_routed_experts=64,
    num_experts_per_tok=6,
    n_shared_experts=2,
    moe_intermediate_size=1408,
    n_group=1,
    topk_group=1,
    num_attention_heads=16,
    q_lora_rank=None,
    vocab_size=163840,
    weight_format="bf16",
)
LARGE = {
    "v3-shaped": replace(
        _MOONLIGHT, num_hidden_layers=8, intermediate_size=10944, q_lora_rank=768, vocab_size=32000, weight_format="fp8"
    ),
    "moonlight-4l": _MOONLIGHT,  # of 27
}


_MIXED = Shape(num_hidden_layers=3)
_STREAMED = Shape(num_hidden_layers=13, moe_intermediate_size=1024)


def streamed_checkpoint(listener: Listener) -> Path:
    """The folder of one with 1.8 GB of experts, to be read while it computes; makes it if it is not there."""
    return _made("streamed", _STREAMED, listener)


def bench_checkpoint(listener: Listener) -> Path:
    """The small one's folder; makes it if it is not there."""
    return _made("small", Shape(), listener)


def mixed_checkpoint(listener: Listener) -> Path:
    """The folder of one of about 0.3 GB, which answers many requests in minutes; makes it if it is not there."""
    return _made("mixed", _MIXED, listener)


def large_checkpoint(name: str, listener: Listener) -> Path:
    """The folder of one of LARGE; makes it if it is not there. OutOfMemoryError where disk or memory are too small."""
    shape = LARGE[name]
    if available_memory() and available_memory() < MEMORY_SHARE * shape.nbytes:
        raise OutOfMemoryError(f"{name} takes {shape.nbytes / 1e9:.1f} GB of memory", "close other programs")
    return _made(name, shape, listener)


def _made(name: str, shape: Shape, listener: Listener) -> Path:
    folder = cache_dir() / "bench" / f"{name}-{VERSION}"
    if (folder / "config.json").exists():
        return folder
    listener.progress(f"making a checkpoint of {shape.nbytes / 1e9:.1f} GB in {folder}")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free < DISK_SHARE * shape.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_checkpoint(unfinished, shape, SEED)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise _not_written(folder, error) from error
    return folder


def write_checkpoint(folder: Path, shape: Shape, seed: int) -> None:
    """A whole checkpoint in `folder`, config.json last."""
    folder.mkdir(parents=True)
    random = np.random.Generator(np.random.SFC64(seed))
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for name, tensors in _shards(shape).items():
        total_bytes += write_shard(folder / name, tensors, random)
        weight_map |= {tensor.name: name for tensor in tensors}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
    vocabulary.write(folder)
    _write_json(folder / "config.json", _config(shape))


def _shards(shape: Shape) -> dict[str, list[Tensor]]:
    """Tensors by file."""
    shards = {"model-ends.safetensors": list(_ends(shape))}
    for layer in range(shape.num_hidden_layers):
        shards[f"model-layer-{layer:03}.safetensors"] = list(_layer(shape, layer))
    return shards


def _ends(s: Shape) -> Iterator[Tensor]:
    yield bf16("model.embed_tokens.weight", (s.vocab_size, s.hidden_size), 1.0)
    # Row 1 is the end of the answer: without a weight it is never the likeliest.
    yield zeroed_row(bf16("lm_head.weight", (s.vocab_size, s.hidden_size), s.hidden_size**-0.5), vocabulary.EOS)
    yield ones("model.norm.weight", s.hidden_size)


def _layer(s: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    yield ones(f"{prefix}input_layernorm.weight", s.hidden_size)
    yield ones(f"{prefix}post_attention_layernorm.weight", s.hidden_size)
    yield from _attention(s, f"{prefix}self_attn.")
    mlp = f"{prefix}mlp."
    if layer < s.first_k_dense_replace:
        yield from _ffn(s, mlp, s.intermediate_size)
        return
    yield bf16(f"{mlp}gate.weight", (s.n_routed_experts, s.hidden_size), s.hidden_size**-0.5)
    yield Tensor(f"{mlp}gate.e_score_correction_bias", "F32", (s.n_routed_experts,), 0.01)
    yield from _ffn(s, f"{mlp}shared_experts.", s.n_shared_experts * s.moe_intermediate_size)
    for expert in range(s.n_routed_experts):
        yield from _ffn(s, f"{mlp}experts.{expert}.", s.moe_intermediate_size)


def _attention(s: Shape, prefix: str) -> Iterator[Tensor]:
    heads, qk = s.num_attention_heads, s.qk_nope_head_dim + s.qk_rope_head_dim
    latent_q = s.q_lora_rank
    if latent_q is None:
        yield from _linear(s, f"{prefix}q_proj", heads * qk, s.hidden_size)
    else:
        yield from _linear(s, f"{prefix}q_a_proj", latent_q, s.hidden_size)
        yield ones(f"{prefix}q_a_layernorm.weight", latent_q)
        yield from _linear(s, f"{prefix}q_b_proj", heads * qk, latent_q)
    yield from _linear(s, f"{prefix}kv_a_proj_with_mqa", s.kv_lora_rank + s.qk_rope_head_dim, s.hidden_size)
    yield ones(f"{prefix}kv_a_layernorm.weight", s.kv_lora_rank)
    yield from _linear(s, f"{prefix}kv_b_proj", heads * (s.qk_nope_head_dim + s.v_head_dim), s.kv_lora_rank)
    yield from _linear(s, f"{prefix}o_proj", s.hidden_size, heads * s.v_head_dim)


def _ffn(s: Shape, prefix: str, inter: int) -> Iterator[Tensor]:
    yield from _linear(s, f"{prefix}gate_proj", inter, s.hidden_size)
    yield from _linear(s, f"{prefix}up_proj", inter, s.hidden_size)
    yield from _linear(s, f"{prefix}down_proj", s.hidden_size, inter)


def _linear(s: Shape, name: str, rows: int, cols: int) -> Iterator[Tensor]:
    if s.weight_format == "fp8":
        yield from fp8(name, rows, cols)
    else:
        yield bf16(f"{name}.weight", (rows, cols), cols**-0.5)


def _config(s: Shape) -> dict[str, Any]:
    sizes = {field.name: getattr(s, field.name) for field in fields(s) if field.name != "weight_format"}
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        **sizes,
        "num_key_value_heads": s.num_attention_heads,
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 163840,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "attention_bias": False,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "bos_token_id": vocabulary.BOS,
        "eos_token_id": vocabulary.EOS,
    }
    return config | {"quantization_config": _FP8} if s.weight_format == "fp8" else config


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=1), encoding="utf-8")


def _not_written(folder: Path, error: OSError) -> LocalmoeError:
    message = f"the benchmark's checkpoint cannot be written to {folder}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemoryError(message, "make room there, or give a model with --model")
    return LocalmoeError(message, "give a model with --model, or set XDG_CACHE_HOME to a folder that can be written")

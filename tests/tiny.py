"""Random checkpoints in the Hugging Face layout: exact architectures and file formats, tiny sizes.

    folder = make_checkpoint(tmp_path / "model", **SHAPES["v3"])
    folder = make_checkpoint(tmp_path / "model", hidden_size=200, ue8m0=True, shards=3)

Needs numpy and tokenizers only. Weights are scaled so that activations keep their size from layer to layer and that
routers, attention and logits have opinions.
"""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BLOCK = 128
SPECIALS = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}{{ eos_token }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}

V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "hidden_size": 160,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "intermediate_size": 288,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 72,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": YARN,
    "max_position_embeddings": 163840,
    "vocab_size": 320,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "quantization_config": FP8,
}

# The real one's sizes: for what is computed from a config alone.
DEEPSEEK_V3 = V3 | {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
}
V2: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    "quantization_config": None,
}

SHAPES: dict[str, dict[str, Any]] = {
    "v3": {},
    "v3-no-q-lora": {"q_lora_rank": None, "rope_scaling": None},
    "odd-dims": {"moe_intermediate_size": 176, "kv_lora_rank": 96, "hidden_size": 136, "v_head_dim": 20},
    "two-dense": {"first_k_dense_replace": 2, "num_hidden_layers": 4},
    "three-dense": {"first_k_dense_replace": 3, "num_hidden_layers": 4},
    "two-shared": {"n_shared_experts": 2},
    "no-shared": {"n_shared_experts": 0},
    "one-group": {"n_routed_experts": 24, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1},
    "kimi-k2": {
        "model_type": "kimi_k2",
        "n_routed_experts": 24,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.827,
        "rope_theta": 50000.0,
        "rope_scaling": YARN | {"factor": 32, "beta_fast": 1.0, "beta_slow": 1.0},
    },
    "v2-lite": V2,
    "v2-groups": V2 | {"q_lora_rank": 72, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
    "moonlight": {
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.446,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "rope_scaling": None,
        "quantization_config": None,
    },
    "ue8m0": {"ue8m0": True},
    "tied": {"tie_word_embeddings": True},
    "mtp-and-shards": {"num_nextn_predict_layers": 1, "shards": 3},
}

Tensor = tuple[str, np.ndarray]  # safetensors' dtype name, the bytes' array
Tensors = dict[str, Tensor]


def make_checkpoint(
    folder: Path | str, seed: int = 0, *, shards: int = 1, ue8m0: bool = False, **overrides: Any
) -> Path:
    """Writes a random checkpoint and its tokenizer; `overrides` are keys of config.json. Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = V3 | overrides
    if ue8m0:
        config["quantization_config"] = config["quantization_config"] | {"scale_fmt": "ue8m0"}
    write_weights(folder, dict(_Maker(config, seed, ue8m0).model()), shards)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.3, "top_p": 0.95},
    )
    write_tokenizer(folder)
    return folder


def write_weights(folder: Path, tensors: Tensors, shards: int = 1) -> None:
    """model.safetensors, or `shards` files and their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names, weight_map = list(tensors), {}
    for n in range(shards):
        file = f"model-{n + 1:05d}-of-{shards:06d}.safetensors"
        mine = names[n * len(names) // shards : (n + 1) * len(names) // shards]
        write_safetensors(folder / file, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    total = sum(array.nbytes for _, array in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """One file: 8 bytes of header length, the header, the data, in the order of safetensors' own writer."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1][1].itemsize, item[0])))
    position = 0
    for name, (dtype, array) in tensors.items():
        offsets = [position, position + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE without merges: DeepSeek's special tokens, then one token for each byte."""
    vocab = {token: n for n, token in enumerate(SPECIALS)}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[character] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[1],
            "pad_token": SPECIALS[2],
            "model_max_length": 32768,
            "chat_template": CHAT_TEMPLATE,
        },
    )


class _Maker:
    """Draws a model's tensors in the order of its layers."""

    def __init__(self, config: dict[str, Any], seed: int, ue8m0: bool) -> None:
        self.config = config
        self.random = np.random.default_rng(seed)
        self.ue8m0 = ue8m0

    def model(self) -> Iterator[tuple[str, Tensor]]:
        c, hidden = self.config, self.config["hidden_size"]
        yield "model.embed_tokens.weight", self.plain(c["vocab_size"], hidden, std=1.0)
        for n in range(c["num_hidden_layers"]):
            yield from self.layer(n)
        yield "model.norm.weight", self.norm(hidden)
        if not c["tie_word_embeddings"]:
            yield "lm_head.weight", self.plain(c["vocab_size"], hidden, std=3 / math.sqrt(hidden))
        for n in range(c["num_nextn_predict_layers"]):
            yield from self.mtp_layer(c["num_hidden_layers"] + n)

    def layer(self, n: int) -> Iterator[tuple[str, Tensor]]:
        c, prefix = self.config, f"model.layers.{n}."
        yield prefix + "input_layernorm.weight", self.norm(c["hidden_size"])
        yield prefix + "post_attention_layernorm.weight", self.norm(c["hidden_size"])
        yield from self.attention(prefix + "self_attn.")
        if n < c["first_k_dense_replace"]:
            yield from self.ffn(prefix + "mlp.", c["intermediate_size"])
        else:
            yield from self.mixture(prefix + "mlp.")

    def attention(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        c, hidden, rank = self.config, self.config["hidden_size"], self.config["kv_lora_rank"]
        heads, nope, rope, v = (
            c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        q_rank = c["q_lora_rank"]
        if q_rank:
            yield from self.linear(prefix + "q_a_proj", q_rank, hidden)
            yield prefix + "q_a_layernorm.weight", self.norm(q_rank)
        q = prefix + ("q_b_proj" if q_rank else "q_proj")
        yield from self.linear(q, heads * (nope + rope), q_rank or hidden, gain=1.5)
        yield from self.linear(prefix + "kv_a_proj_with_mqa", rank + rope, hidden)
        yield prefix + "kv_a_layernorm.weight", self.norm(rank)
        yield from self.linear(prefix + "kv_b_proj", heads * (nope + v), rank)
        yield from self.linear(prefix + "o_proj", hidden, heads * v)

    def mixture(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        c, experts = self.config, self.config["n_routed_experts"]
        yield prefix + "gate.weight", self.plain(experts, c["hidden_size"], std=1.5 / math.sqrt(c["hidden_size"]))
        if c["topk_method"] == "noaux_tc":
            bias = 0.1 * self.random.standard_normal(experts, dtype=np.float32)
            yield prefix + "gate.e_score_correction_bias", ("F32", bias)
        for e in range(experts):
            yield from self.ffn(f"{prefix}experts.{e}.", c["moe_intermediate_size"])
        if c["n_shared_experts"]:
            yield from self.ffn(prefix + "shared_experts.", c["n_shared_experts"] * c["moe_intermediate_size"])

    def ffn(self, prefix: str, inter: int) -> Iterator[tuple[str, Tensor]]:
        hidden = self.config["hidden_size"]
        yield from self.linear(prefix + "gate_proj", inter, hidden)
        yield from self.linear(prefix + "up_proj", inter, hidden)
        yield from self.linear(prefix + "down_proj", hidden, inter)

    def mtp_layer(self, n: int) -> Iterator[tuple[str, Tensor]]:
        """What DeepSeek-V3 keeps behind its last layer; the network must not need it."""
        c, hidden, prefix = self.config, self.config["hidden_size"], f"model.layers.{n}."
        yield prefix + "embed_tokens.weight", self.plain(c["vocab_size"], hidden, std=1.0)
        yield prefix + "enorm.weight", self.norm(hidden)
        yield prefix + "hnorm.weight", self.norm(hidden)
        yield from self.linear(prefix + "eh_proj", hidden, 2 * hidden)
        yield prefix + "shared_head.norm.weight", self.norm(hidden)
        yield prefix + "shared_head.head.weight", self.plain(c["vocab_size"], hidden, std=0.1)
        yield from self.layer(n)

    def linear(self, name: str, rows: int, cols: int, gain: float = 1.0) -> Iterator[tuple[str, Tensor]]:
        weight = self.random.standard_normal((rows, cols), dtype=np.float32) * np.float32(gain / math.sqrt(cols))
        if self.config["quantization_config"] is None:
            yield name + ".weight", ("BF16", to_bf16(weight))
            return
        codes, scale = quantise(weight, self.ue8m0)
        yield name + ".weight", ("F8_E4M3", codes)
        yield name + ".weight_scale_inv", ("F32", scale)

    def plain(self, rows: int, cols: int, std: float) -> Tensor:
        weight = self.random.standard_normal((rows, cols), dtype=np.float32) * np.float32(std)
        return "BF16", to_bf16(weight)

    def norm(self, size: int) -> Tensor:
        return "BF16", to_bf16(1 + 0.1 * self.random.standard_normal(size, dtype=np.float32))


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 -> BF16 bits (uint16), to nearest even; finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def fp8_values() -> np.ndarray:
    """The 127 magnitudes of E4M3, codes 0x00 to 0x7E."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0)).astype(np.float32)


def quantise(weight: np.ndarray, ue8m0: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """[rows, cols] -> FP8 codes (uint8) and float32 scales, one for each block; with `ue8m0` powers of two."""
    rows, cols = weight.shape
    padded = np.zeros((-(-rows // BLOCK) * BLOCK, -(-cols // BLOCK) * BLOCK), np.float32)
    padded[:rows, :cols] = np.abs(weight)
    largest = padded.reshape(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK).max(axis=(1, 3))
    scale = np.maximum(largest, 1e-12) / np.float32(448)
    if ue8m0:
        scale = np.exp2(np.ceil(np.log2(scale))).astype(np.float32)
    spread = scale.repeat(BLOCK, 0)[:rows].repeat(BLOCK, 1)[:, :cols]
    return nearest_codes(np.abs(weight) / spread) | (np.signbit(weight).astype(np.uint8) << 7), scale


def nearest_codes(x: np.ndarray) -> np.ndarray:
    """Of float32 magnitudes up to 448, the lower one of two that are as near."""
    normal = ((x.view(np.int32) + 0x7FFFF) >> 20) - ((127 - 7) << 3)  # a float's bits: E4M3 has 20 less, and bias 7
    return np.where(x < 2.0**-6, np.ceil(x * 512 - 0.5), np.minimum(normal, 126)).astype(np.uint8)


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")

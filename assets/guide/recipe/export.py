"""Writes a checkpoint in DeepSeek-V3's on-disk format: python export.py CHECKPOINT MODEL_FOLDER.

FP8 E4M3 codes with FP32 `weight_scale_inv` for the projections, BF16 for the rest, FP32 correction biases.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from fp8 import BLOCK, plain_tensors, quantise, quantised_matrices
from network import Guide, Mixture, Shape
from safetensors.torch import save_file
from tokens import BOS_ID, EOS_ID, PAD_ID
from torch import Tensor

TEMPERATURE, TOP_P = 0.3, 0.95


def load_checkpoint(path: Path) -> Guide:
    """The network with the FP32 weights of a training checkpoint."""
    model = Guide()
    model.load_state_dict(torch.load(path, map_location="cpu")["model"], strict=False)
    return model.eval()


def checkpoint_tensors(model: Guide) -> dict[str, Tensor]:
    """Every tensor of the exported model, by its Hugging Face name."""
    tensors = {}
    for name, matrix in quantised_matrices(model).items():
        tensors[name], tensors[f"{name}_scale_inv"] = quantise(matrix.detach())
    for name, tensor in plain_tensors(model).items():
        tensors[name] = tensor.detach().bfloat16()
    for index, block in enumerate(model.layers):
        if isinstance(block.mlp, Mixture):
            bias = block.mlp.gate.e_score_correction_bias
            tensors[f"model.layers.{index}.mlp.gate.e_score_correction_bias"] = bias.float().clone()
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def config(shape: Shape) -> dict:
    """`config.json` for `DeepseekV3ForCausalLM`."""
    fixed = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "ep_size": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "num_key_value_heads": shape.num_attention_heads,
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-6,
        "rope_interleave": True,
        "rope_scaling": None,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }
    return dict(sorted((fixed | asdict(shape)).items()))


def generation_config() -> dict:
    """`generation_config.json`: cautious sampling, for a model that knows its answers by heart."""
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    return ids | {"do_sample": True, "temperature": TEMPERATURE, "top_p": TOP_P}


def main() -> None:
    """Write weights and configs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    model = load_checkpoint(options.checkpoint)
    tensors = checkpoint_tensors(model)
    save_file(tensors, options.model / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config", config(model.shape)), ("generation_config", generation_config())):
        (options.model / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(f"{len(tensors)} tensors, {size_bytes} bytes")


if __name__ == "__main__":
    main()

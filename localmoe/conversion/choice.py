"""What becomes FP8 and what stays as it is: as in the files that DeepSeek released for V3.

Every projection of attention and of the feed-forward layers becomes FP8, of the experts as of all others. Embeddings,
head, norms and the router stay BF16, its bias FP32; so do the joining projection and the head of the MTP layer.
"""

from collections.abc import Mapping
from typing import Any

from localmoe.hub.checkpoint import TensorInfo
from localmoe.model.config import BLOCK, read_config
from localmoe.model.tensors import expected_tensors

QUANTISATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
SCALE_SUFFIX = "_scale_inv"


def converted_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the converted model."""
    return {**config, "quantization_config": QUANTISATION}


def chosen(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
    """The names of what becomes FP8."""
    shape = read_config(converted_config(config))
    specs = [spec for spec in expected_tensors(shape) if spec.dtypes == ("F8_E4M3",)]
    names = {spec.name for spec in specs}
    kinds = {_kind(name) for name in names}
    behind = (t for t in tensors.values() if (layer := layer_of(t.name)) is not None and layer >= shape.num_layers)
    return frozenset(names & set(tensors)) | {
        t.name for t in behind if _kind(t.name) in kinds and t.dtype == "BF16" and len(t.shape) == 2
    }


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None: the model as a whole."""
    number = name.removeprefix("model.layers.").partition(".")[0]
    return int(number) if name.startswith("model.layers.") and number.isdecimal() else None


def _kind(name: str) -> str:
    """q_proj of model.layers.3.self_attn.q_proj.weight."""
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] == "weight" else ""

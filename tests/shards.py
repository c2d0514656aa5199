"""Small checkpoints of random bytes, written by hand: what safetensors files are, without a model around them."""

import json
from pathlib import Path

import numpy as np

from localmoe.hub.checkpoint import TensorSpec

LAYERS, EXPERTS, HIDDEN, INTER = 2, 3, 160, 200  # partial 128 x 128 blocks everywhere
ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


def specs() -> list[TensorSpec]:
    found = [
        TensorSpec("model.embed_tokens.weight", (64, HIDDEN), ("BF16",)),
        TensorSpec("model.norm.weight", (HIDDEN,), ("BF16", "F32")),
    ]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        found += fp8(f"{prefix}.self_attn.o_proj", HIDDEN, HIDDEN)
        found.append(TensorSpec(f"{prefix}.mlp.gate.e_score_correction_bias", (EXPERTS,), ("F32",)))
        for expert in range(EXPERTS):
            found += fp8(f"{prefix}.mlp.experts.{expert}.gate_proj", INTER, HIDDEN)
            found += fp8(f"{prefix}.mlp.experts.{expert}.up_proj", INTER, HIDDEN)
            found += fp8(f"{prefix}.mlp.experts.{expert}.down_proj", HIDDEN, INTER)
    return found


def fp8(name: str, rows: int, cols: int) -> list[TensorSpec]:
    blocks = -(-rows // 128), -(-cols // 128)
    return [
        TensorSpec(f"{name}.weight", (rows, cols), ("F8_E4M3",)),
        TensorSpec(f"{name}.weight_scale_inv", blocks, ("F32",)),
    ]


def random_bytes(spec: TensorSpec, rng: np.random.Generator) -> bytes:
    """Valid values only: no NaN codes, positive scales."""
    dtype, count = spec.dtypes[0], int(np.prod(spec.shape))
    if dtype == "F8_E4M3":
        codes = rng.integers(0, 256, count, dtype=np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0
        return codes.tobytes()
    values = rng.random(count, dtype=np.float32) + np.float32(0.01)
    return values.tobytes() if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_shard(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """tensors: name -> (dtype, shape, data)."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    write_raw(path, header, b"".join(data for _, _, data in tensors.values()))


def write_raw(path: Path, header: object, data: bytes) -> None:
    """Any header before any data: also those that do not fit."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def make(folder: Path, num_shards: int = 2, seed: int = 0) -> Path:
    """The checkpoint of `specs()` in `folder`; one shard means no index."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors = {spec.name: (spec.dtypes[0], spec.shape, random_bytes(spec, rng)) for spec in specs()}
    (folder / "config.json").write_text('{"model_type": "deepseek_v3"}')
    (folder / "generation_config.json").write_text('{"temperature": 0.3}')
    if num_shards == 1:
        write_shard(folder / "model.safetensors", tensors)
        return folder
    names = list(tensors)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:06d}.safetensors"
        mine = names[shard::num_shards]
        write_shard(folder / file, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def header_of(path: Path) -> tuple[dict, bytes]:
    """A shard's header and data."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]

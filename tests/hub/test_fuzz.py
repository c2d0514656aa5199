"""Files damaged at random: a checkpoint loads, or one of two errors says why. Never another exception."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.decoder import load_model
from localmoe.model.tensors import expected_tensors
from localmoe.weights.load import load

SMALL = {
    "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 40, "moe_intermediate_size": 24,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "vocab_size": 64, "num_nextn_predict_layers": 1,
}  # fmt: skip
NASTY: list[Any] = [
    None, True, 0, -1, 1, 2, 3, 127, 1 << 31, 1 << 63, 10**400, 0.5, -0.0, 1e308, "", "x", "../x", "\0", "\ud800",
    "F8_E5M2", "F32", "BF16", "fp8", [], [0], [1, 1], [0, 0], [-1, 5], {}, {"a": []}, "x" * 70_000, [[[[[]]]]],
]  # fmt: skip
Files = dict[str, bytes]


def flip(files: Files, name: str, rng: random.Random) -> None:
    data = bytearray(files[name])
    limit = rng.choice([8, 64, 4000, len(data)])
    for _ in range(rng.choice([1, 1, 3, 50])):
        if data:
            data[rng.randrange(min(limit, len(data)))] ^= rng.randrange(1, 256)
    files[name] = bytes(data)


def truncate(files: Files, name: str, rng: random.Random) -> None:
    files[name] = files[name][: rng.randrange(len(files[name]) + 1)]


def extend(files: Files, name: str, rng: random.Random) -> None:
    files[name] += rng.randbytes(rng.randrange(1, 100))


def repeat(files: Files, name: str, rng: random.Random) -> None:
    start = rng.randrange(len(files[name]) + 1)
    stop = min(len(files[name]), start + rng.randrange(1, 300))
    files[name] = files[name][:stop] + files[name][start:]


def zero(files: Files, name: str, rng: random.Random) -> None:
    start = rng.randrange(len(files[name]) + 1)
    hole = files[name][start : start + rng.randrange(1, 5000)]
    files[name] = files[name][:start] + bytes(len(hole)) + files[name][start + len(hole) :]


def delete(files: Files, name: str, rng: random.Random) -> None:
    del files[name]


def swap(files: Files, name: str, rng: random.Random) -> None:
    other = rng.choice(sorted(files))
    files[name], files[other] = files[other], files[name]


def noise(files: Files, name: str, rng: random.Random) -> None:
    files[name] = rng.randbytes(rng.randrange(200))


def rewrite_json(files: Files, name: str, rng: random.Random) -> None:
    """One value, somewhere in the file's JSON, becomes another."""
    is_shard = name.endswith(".safetensors")
    stop = 8 + int.from_bytes(files[name][:8], "little") if is_shard else None
    value = json.loads(files[name][8 if is_shard else 0 : stop])
    mutate(value, rng)
    text = json.dumps(value).encode()
    files[name] = len(text).to_bytes(8, "little") + text + files[name][stop:] if is_shard else text


def mutate(value: Any, rng: random.Random) -> None:
    key = rng.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.8:
        mutate(value[key], rng)
    elif rng.random() < 0.15:
        del value[key]
    elif isinstance(value, dict) and rng.random() < 0.3:
        value[key] = value[rng.choice(sorted(value))]
    elif isinstance(value[key], int) and rng.random() < 0.4:
        value[key] += rng.choice([-1, 1, 128])
    else:
        value[key] = rng.choice(NASTY)


DAMAGES: list[Callable[[Files, str, random.Random], None]] = [
    flip, flip, flip, truncate, extend, repeat, zero, delete, swap, noise,
    rewrite_json, rewrite_json, rewrite_json, rewrite_json, rewrite_json, rewrite_json,
]  # fmt: skip


@pytest.fixture(scope="module", params=[1, 3])
def sound(request, tmp_path_factory) -> Files:
    folder = tiny.make_checkpoint(tmp_path_factory.mktemp("sound") / "model", shards=request.param, **SMALL)
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("tokenizer")}


def write(folder: Path, files: Files, rng: random.Random) -> None:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    if rng.random() < 0.04:  # something in place of a file
        path = folder / rng.choice(sorted(files))
        path.unlink()
        rng.choice([path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path)])()


def read(folder: Path) -> None:
    """Everything that opening a model does with its files."""
    checkpoint = Checkpoint.open(folder)
    config = read_config(checkpoint.config)
    load_model(config, load(checkpoint, expected_tensors(config)))


def check(sound: Files, folder: Path, seed: int) -> str:
    rng, files = random.Random(seed), dict(sound)
    for _ in range(rng.choice([1, 1, 1, 2])):
        name = rng.choice(sorted(files))
        try:
            rng.choice(DAMAGES)(files, name, rng)
        except (ValueError, LookupError, TypeError):  # damaged twice: no longer what the second damage expects
            continue
    write(folder, files, rng)
    try:
        read(folder)
    except (CheckpointError, UnsupportedModelError) as error:
        assert error.exit_code == 4
        assert error.message and error.hint and len(error.message) < 1500
        assert error.message.isprintable() and error.hint.isprintable()
        return "refused"
    return "loaded"


def run(sound: Files, folder: Path, seeds: range) -> None:
    outcomes = []
    for seed in seeds:
        print("seed", seed)  # shown when it fails
        outcomes.append(check(sound, folder / str(seed), seed))
    assert outcomes.count("refused") > len(outcomes) / 2
    assert outcomes.count("loaded") > len(outcomes) / 20


def test_undamaged_files_load(sound, tmp_path):
    for name, data in sound.items():
        (tmp_path / name).write_bytes(data)
    read(tmp_path)


def test_damaged_files_load_or_say_why(sound, tmp_path):
    run(sound, tmp_path, range(250))


@pytest.mark.slow
def test_many_damaged_files_load_or_say_why(sound, tmp_path):
    run(sound, tmp_path, range(1000, 6000))

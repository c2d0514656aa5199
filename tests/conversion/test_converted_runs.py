"""Converted models in the engine: what they say is near to what the original says."""

import json

import numpy as np
import pytest
import tiny
from converting import arrays, convert
from tiny import SHAPES, make_checkpoint

from localmoe import _native as native
from localmoe.engine.engine import Engine
from localmoe.hub.catalog import data_path
from localmoe.hub.checkpoint import Checkpoint
from localmoe.kernels.cpu import CpuProgram
from localmoe.kernels.ops import Segment
from localmoe.model.cache import LatentCache
from localmoe.model.config import read_config
from localmoe.model.decoder import decode, load_model
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings
from localmoe.weights.load import load

NUM_TOKENS = 100
POOL = native.Pool([-1])


def logits_of(folder) -> np.ndarray:
    """[NUM_TOKENS, vocabulary], of random tokens."""
    checkpoint = Checkpoint.open(folder)
    config = read_config(checkpoint.config)
    model = load_model(config, load(checkpoint, expected_tensors(config), nodes=()))
    cache = LatentCache(config.num_layers, 4, config.latent_width, "float32")
    ids = np.random.default_rng(0).integers(0, config.vocab, NUM_TOKENS).astype(np.int32)
    table = cache.new_table()
    table.reserve(NUM_TOKENS)
    program = CpuProgram(lambda ops: decode(ops, model, cache), NUM_TOKENS, POOL)
    return program.forward(ids, [Segment(table, 0, NUM_TOKENS)], all_logits=True)


@pytest.mark.parametrize("shape", ["moonlight", "v2-lite", "v2-groups"])
def test_logits_are_near_to_the_originals(tmp_path, shape):
    source = make_checkpoint(tmp_path / "model", **SHAPES[shape])
    truth, ours = logits_of(source), logits_of(convert(source, tmp_path / "fp8"))
    rows = np.linalg.norm(ours - truth, axis=1) / np.linalg.norm(truth, axis=1)
    print(np.median(rows), max(rows), (ours.argmax(-1) == truth.argmax(-1)).mean())
    assert 0.001 < np.median(rows) < 0.2 and (ours.argmax(-1) == truth.argmax(-1)).mean() > 0.7


@pytest.fixture(scope="module")
def guide_in_bf16(tmp_path_factory):
    """The embedded model with its weights as BF16 has them."""
    guide, folder = data_path("guide"), tmp_path_factory.mktemp("guide") / "guide-bf16"
    folder.mkdir()
    before, half = arrays(guide), np.append(tiny.fp8_values(), np.float32(0))
    values, tensors = np.concatenate([half, -half]), {}
    for name, array in before.items():
        if array.dtype == np.uint8:
            wide = before[f"{name}_scale_inv"].repeat(128, 0)[: array.shape[0]].repeat(128, 1)[:, : array.shape[1]]
            tensors[name] = ("BF16", tiny.to_bf16(values[array] * wide))
        elif not name.endswith("_scale_inv"):
            tensors[name] = ("F32" if array.dtype == np.float32 else "BF16", array)
    tiny.write_weights(folder, tensors)
    for path in guide.iterdir():
        if path.is_file() and path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((guide / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_guide_from_bf16_says_what_the_guide_says(guide_in_bf16, tmp_path):
    from localmoe.chat.message import Conversation, Message
    from localmoe.engine.request import Request, Sampling
    from localmoe.events import Finished

    def answer(model: str) -> str:
        engine = Engine.open(model, Settings(model=model, threads=1))
        try:
            asked = Conversation().add(Message("user", "What can you do?"))
            request = Request(asked, Sampling(temperature=0.0), max_tokens=24)
            return next(e.text for e in engine.submit(request).events() if isinstance(e, Finished))
        finally:
            engine.close()

    assert answer(str(convert(guide_in_bf16, tmp_path / "fp8"))) == answer("guide")


def test_weights_that_were_fp8_once_become_nearly_the_same_again(guide_in_bf16, tmp_path):
    before, after = arrays(data_path("guide")), arrays(convert(guide_in_bf16, tmp_path / "fp8"))
    same = [(after[name] == before[name]).mean() for name in after if after[name].dtype == np.uint8]
    assert min(same) > 0.97
    assert set(after) == set(before)

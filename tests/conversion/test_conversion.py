"""BF16 to FP8: what is converted and what stays, the bytes that come of it, and what is refused."""

import json
import os

import numpy as np
import pytest
import tiny
from converting import BF16, arrays, contents, convert, plan_of
from tiny import SHAPES, make_checkpoint

from localmoe.conversion.accuracy import by_layer, overall
from localmoe.conversion.convert import Conversion, Converting
from localmoe.conversion.journal import read_journal
from localmoe.errors import CancelledError, CheckpointError, LocalmoeError, OutOfMemoryError, UsageError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.hub.hf_cache import state_of
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors


@pytest.fixture
def source(tmp_path):
    return make_checkpoint(tmp_path / "model", **SHAPES["moonlight"], shards=3)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "model-fp8"


@pytest.mark.parametrize(
    "shape", ["v2-lite", "moonlight", "odd-dims", "no-shared", "tied", "mtp-and-shards", "kimi-k2", "v2-groups"]
)
def test_every_architecture_becomes_what_its_fp8_config_asks_for(tmp_path, out, shape):
    source = make_checkpoint(tmp_path / "model", **(SHAPES[shape] | BF16))
    assert convert(source, out) == out
    checkpoint = Checkpoint.open(out)
    config = read_config(checkpoint.config)
    assert config.weight_format == "fp8"
    checkpoint.validate(expected_tensors(config))
    assert state_of(out) == "present"
    assert checkpoint.config["quantization_config"] == tiny.FP8


def test_codes_and_scales_are_those_of_a_plain_quantisation(source, out):
    before, after = arrays(source), arrays(convert(source, out))
    for name in after:
        if name.endswith("_scale_inv"):
            weight = name.removesuffix("_scale_inv")
            codes, scales = tiny.quantise((before[weight].astype(np.uint32) << 16).view(np.float32))
            assert (after[name] == scales).all()
            differ = after[weight] != codes  # tiny rounds ties down
            assert differ.mean() < 0.05 and (after[weight][differ] % 2 == 0).all()


def test_norms_router_embeddings_and_head_stay_as_they_are(source, out):
    before, after = arrays(source), arrays(convert(source, out))
    kept = {name for name in before if before[name].dtype == after[name].dtype}
    assert {name.split(".")[-2] for name in kept} == {
        "embed_tokens",
        "lm_head",
        "norm",
        "input_layernorm",
        "post_attention_layernorm",
        "kv_a_layernorm",
        "gate",
    }
    assert all((before[name] == after[name]).all() for name in kept)
    assert set(after) - set(before) == {f"{name}_scale_inv" for name in before if name not in kept}


def test_of_the_mtp_layer_the_projections_are_converted(tmp_path, out):
    source = make_checkpoint(tmp_path / "model", **(SHAPES["mtp-and-shards"] | BF16))
    after = arrays(convert(source, out))
    plain = {name.removeprefix("model.layers.3.") for name in after if name.startswith("model.layers.3.")}
    assert {"eh_proj.weight", "shared_head.head.weight", "mlp.experts.0.up_proj.weight_scale_inv"} <= plain
    assert after["model.layers.3.eh_proj.weight"].dtype == np.uint16
    assert "eh_proj.weight_scale_inv" not in plain


def test_small_files_go_over_and_config_says_how_it_is_quantised(source, out):
    (source / "modeling_mine.py").write_text("# code")
    (source / "pytorch_model.bin").write_bytes(b"weights in another form")
    (source / ".hidden").write_text("")
    convert(source, out)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "modeling_mine.py"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "pytorch_model.bin").exists() and not (out / ".hidden").exists()
    config = json.loads((out / "config.json").read_text())
    assert config.pop("quantization_config") == tiny.FP8
    before = json.loads((source / "config.json").read_text())
    assert config == {key: value for key, value in before.items() if key != "quantization_config"}
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays(out).values())


def test_the_plan_says_exactly_what_is_written(source, out):
    plan = plan_of(source, out)
    convert(source, out)
    assert {t.name: t.nbytes for t in plan.targets} == {p.name: p.stat().st_size for p in out.glob("*.safetensors")}
    assert plan.missing_bytes == plan.total_bytes
    assert plan.source_bytes == sum(array.nbytes for array in arrays(source).values())


def test_safetensors_own_reader_finds_the_same(source, out):
    from safetensors import safe_open

    name = "model.layers.0.self_attn.o_proj.weight_scale_inv"
    with safe_open(convert(source, out) / "model-00001-of-000003.safetensors", framework="np") as file:
        assert (file.get_tensor(name) == arrays(out)[name]).all()


def test_the_error_is_told_by_layer_and_is_small(source, out):
    convert(source, out)
    matrices = read_journal(out).matrices
    before, after = arrays(source), arrays(out)
    one = matrices[5]
    weight = (before[one.name].astype(np.uint32) << 16).view(np.float32)
    wide = after[f"{one.name}_scale_inv"].repeat(128, 0)[: weight.shape[0]].repeat(128, 1)[:, : weight.shape[1]]
    values = np.concatenate([tiny.fp8_values(), [np.nan], -tiny.fp8_values(), [np.nan]]).astype(np.float32)
    missed = values[after[one.name]] * wide - weight
    assert one.relative == pytest.approx(np.linalg.norm(missed) / np.linalg.norm(weight), rel=1e-4)
    layers = by_layer(matrices)
    assert [layer.layer for layer in layers] == [0, 1, 2]
    assert all(0.015 < layer.relative < layer.worst.relative < 0.035 for layer in layers)
    assert min(layer.relative for layer in layers) < overall(matrices) < max(layer.relative for layer in layers)


def test_blocks_of_zeros_and_of_tiny_numbers(tmp_path, out):
    source = make_checkpoint(tmp_path / "model", **(SHAPES["moonlight"]))
    tensors = {n: ("F32" if a.dtype == np.float32 else "BF16", a.copy()) for n, a in arrays(source).items()}
    zero, small = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.q_proj.weight"
    tensors[zero][1][:] = 0
    tensors[small][1][:] = 0x0001  # the smallest that BF16 has
    tiny.write_weights(source, tensors)
    after = arrays(convert(source, out))
    assert not after[zero].any() and (after[f"{zero}_scale_inv"] == 1).all()
    assert np.isfinite(after[f"{small}_scale_inv"]).all() and (after[f"{small}_scale_inv"] > 0).all()
    assert read_journal(out).matrices[0].relative >= 0


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path, out, bits):
    source = make_checkpoint(tmp_path / "model", **(SHAPES["moonlight"]))
    tensors = {n: ("F32" if a.dtype == np.float32 else "BF16", a.copy()) for n, a in arrays(source).items()}
    tensors["model.layers.1.self_attn.o_proj.weight"][1][3, 5] = bits
    tiny.write_weights(source, tensors)
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.self_attn\.o_proj\.weight in shard .* infinite or no"
    ):
        convert(source, out)
    assert not out.exists()


def test_memory_is_bounded_by_a_few_bands(tmp_path, out):
    """A matrix of 64 MB goes through in pieces: what numpy holds at a time is a small part of it."""
    import tracemalloc

    from localmoe.conversion.shard import Shard

    shape = SHAPES["moonlight"] | {"intermediate_size": 16384, "hidden_size": 512, "num_hidden_layers": 1}
    source = make_checkpoint(tmp_path / "model", **(shape | {"vocab_size": 40_000}))
    plan = plan_of(source, out)
    plan.unfinished.mkdir(parents=True)
    tracemalloc.start()
    for target in plan.targets:
        Shard(target, plan.unfinished, plan.chosen, lambda num_bytes: None).make()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.source_bytes > 80e6 and peak < 20e6


def test_an_fp8_model_is_refused(tmp_path, out):
    source = make_checkpoint(tmp_path / "model")
    with pytest.raises(UsageError, match="mine is FP8 already") as caught:
        convert(source, out)
    assert "localmoe chat -m" in caught.value.hint


def test_what_is_there_is_never_overwritten(source, out):
    out.mkdir(parents=True)
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        convert(source, out)
    assert contents(out) == {"mine.txt": b"mine"}
    (out / "mine.txt").unlink()
    assert convert(source, out) == out  # an empty folder holds nothing
    before = contents(out)
    with pytest.raises(UsageError, match="is there already"):
        convert(source, out)
    assert contents(out) == before


@pytest.mark.parametrize("where", [".", "inside", ".."])
def test_the_original_is_never_written_into(source, where):
    with pytest.raises(UsageError, match="is where the original lies"):
        convert(source, source / where)


def test_an_unfinished_folder_of_something_else_is_not_touched(source, out, tmp_path):
    unfinished = out.with_name("model-fp8.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "notes").write_text("mine")
    with pytest.raises(UsageError, match="not from a conversion"):
        convert(source, out)
    assert contents(unfinished) == {"notes": b"mine"}


def test_a_run_that_was_killed_before_its_first_note_is_no_hindrance(source, out):
    unfinished = out.with_name("model-fp8.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "conversion.json.new").write_text('{"format"')
    convert(source, out)
    assert not (out / "conversion.json.new").exists()


def test_a_source_that_changed_does_not_go_on_from_before(source, out):
    stop_after_one_shard(source, out)
    os.utime(source / "model-00001-of-000003.safetensors", ns=(1, 1))
    with pytest.raises(UsageError, match="was begun from something else"):
        convert(source, out)


def stop_after_one_shard(source, out) -> None:
    running = Conversion(plan_of(source, out), lambda event: None, at_once=1)
    real = running._journal.add

    def add(*shard):
        real(*shard)
        running.cancel()

    running._journal.add = add
    with pytest.raises(CancelledError, match=r"paused: 1 of 3 files of mine are converted and stay in ") as caught:
        running.run()
    assert caught.value.exit_code == 130


def test_a_cancel_keeps_what_is_made(source, out, tmp_path):
    stop_after_one_shard(source, out)
    assert not out.exists() and state_of(plan_of(source, out).unfinished) == "incomplete"
    plan = plan_of(source, out)
    first = plan.unfinished / plan.targets[0].name
    assert [target.name for target in plan.missing] == [target.name for target in plan.targets[1:]]
    inode = first.stat().st_ino
    convert(source, out)
    assert (out / first.name).stat().st_ino == inode
    assert contents(out) == contents(convert(source, tmp_path / "in-one-go"))


def test_a_disk_without_room_is_told_before_anything_is_written(source, out, monkeypatch):
    monkeypatch.setattr("localmoe.conversion.plan._free_bytes", lambda folder: 1000)
    with pytest.raises(OutOfMemoryError, match=r"needs .* more on the disk of .* free") as caught:
        convert(source, out)
    assert caught.value.exit_code == 5 and not out.parent.exists()


def test_a_disk_that_becomes_full_is_told_and_the_rest_goes_on_later(source, out, monkeypatch):
    import errno

    real, room = os.pwrite, [300_000]

    def pwrite(fd, data, at):
        if room[0] < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(data)
        return real(fd, data, at)

    monkeypatch.setattr("localmoe.conversion.shard.os.pwrite", pwrite)
    with pytest.raises(OutOfMemoryError, match="is full"):
        convert(source, out)
    monkeypatch.undo()
    assert convert(source, out) == out


def test_two_at_once_do_not_write_one_folder(source, out):
    first, second = (Conversion(plan_of(source, out), lambda event: None) for _ in range(2))
    first._folder.mkdir(parents=True)
    with first._alone(), pytest.raises(LocalmoeError, match="another localmoe is converting"):
        second.run()


def test_it_tells_how_it_goes(source, out):
    told = []
    Conversion(plan_of(source, out), told.append).run()
    assert isinstance(told[-1], Converting)
    assert (told[-1].done_bytes, told[-1].num_done) == (told[-1].total_bytes, 3)

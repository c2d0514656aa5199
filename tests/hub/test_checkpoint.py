import json
import os
from pathlib import Path

import pytest
import shards

from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import INDEX, Checkpoint, TensorSpec

FIRST, SECOND = "model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.make(tmp_path / "model")


def damage(folder: Path, *parts: str) -> CheckpointError:
    """The error of opening and validating `folder`; its sentence holds every one of `parts`."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder).validate(shards.specs())
    error = caught.value
    assert error.exit_code == 4
    assert error.hint and "\n" not in error.message + error.hint
    for part in parts:
        assert part in error.message, error.message
    return error


def rewrite_header(path: Path, change) -> None:
    header, data = shards.header_of(path)
    change(header)
    shards.write_raw(path, header, data)


def rewrite_index(folder: Path, change) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_a_sound_checkpoint_names_every_byte_range(tmp_path, num_shards):
    checkpoint = Checkpoint.open(shards.make(tmp_path, num_shards))
    checkpoint.validate(shards.specs())
    assert checkpoint.config == {"model_type": "deepseek_v3"}
    assert checkpoint.generation_config == {"temperature": 0.3}
    assert set(checkpoint.tensors) == {spec.name for spec in shards.specs()}
    for tensor in checkpoint.tensors.values():
        header, data = shards.header_of(tensor.file)
        begin, end = header[tensor.name]["data_offsets"]
        assert tensor.file.read_bytes()[tensor.start : tensor.stop] == data[begin:end]
    assert checkpoint.total_bytes == sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def test_a_file_by_safetensors_itself_opens(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    tensors = {"a": np.ones((3, 4), np.float32), "empty": np.ones((0, 4), np.uint8), "one": np.float32([1])}
    numpy.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text("{}")
    found = Checkpoint.open(tmp_path).tensors
    assert {name: t.shape for name, t in found.items()} == {"a": (3, 4), "empty": (0, 4), "one": (1,)}


def test_no_generation_config_is_fine(folder):
    (folder / "generation_config.json").unlink()
    assert Checkpoint.open(folder).generation_config == {}


def test_tensors_that_no_one_asks_for_are_ignored(folder):
    Checkpoint.open(folder).validate(shards.specs()[:3])


def test_a_truncated_shard(folder):
    size = (folder / FIRST).stat().st_size
    os.truncate(folder / FIRST, size - 1000)
    error = damage(folder, f"shard {FIRST} ends at byte {size - 1000:,}; its header promises {size:,}.")
    assert error.hint == f"copy or download {FIRST} again."


def test_the_hint_is_the_exact_command_in_a_hugging_face_cache(tmp_path):
    snapshot = shards.make(tmp_path / "models--deepseek-ai--DeepSeek-V3.1" / "snapshots" / "9a3c")
    os.truncate(snapshot / SECOND, 5000)
    error = damage(snapshot, SECOND)
    assert error.hint == "localmoe verify deepseek-ai/DeepSeek-V3.1 --repair fetches only that file."
    (snapshot / SECOND).unlink()
    assert damage(snapshot, "is missing").hint == "localmoe pull deepseek-ai/DeepSeek-V3.1 fetches what is missing."


def test_a_shard_cut_inside_its_header(folder):
    os.truncate(folder / FIRST, 100)
    damage(folder, FIRST, "ends at byte 100, inside its header")


@pytest.mark.parametrize("size", [0, 7])
def test_a_shard_shorter_than_its_length_field(folder, size):
    os.truncate(folder / FIRST, size)
    damage(folder, FIRST, f"has {size} bytes")


def test_bytes_after_the_last_tensor(folder):
    with (folder / FIRST).open("ab") as file:
        file.write(b"more")
    damage(folder, FIRST, "accounts for")


def test_something_that_is_no_safetensors_file(folder):
    (folder / FIRST).write_bytes(b"<!DOCTYPE html><html>Not found</html>")
    damage(folder, FIRST, "it is not a safetensors file")


def test_missing_shards_are_counted(folder):
    (folder / FIRST).unlink()
    (folder / SECOND).unlink()
    damage(folder, f"shard {FIRST} is missing", "1 more shard")


def test_a_broken_link(folder):
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to("nowhere")
    damage(folder, f"{FIRST} is missing")


@pytest.mark.parametrize("name", [FIRST, "config.json", INDEX, "generation_config.json"])
def test_a_folder_in_place_of_a_file(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    damage(folder, name, "is a folder; a file is expected")


@pytest.mark.parametrize("name", [FIRST, "config.json"])
def test_a_pipe_in_place_of_a_file_does_not_hang(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    damage(folder, name, "is a device or pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(folder):
    (folder / FIRST).chmod(0)
    damage(folder, FIRST, "Permission denied")


def test_a_file_that_the_disk_refuses(folder, monkeypatch):
    real = Path.open

    def refuse(path, *args, **kwargs):
        if path.name == FIRST:
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    damage(folder, FIRST, "cannot be read: Permission denied")


@pytest.mark.parametrize("where", ["", "nowhere", "nul\0", "x" * 300])
def test_no_folder(tmp_path, where):
    (tmp_path / "model").mkdir()
    damage(tmp_path / "model" / where)


def test_a_file_in_place_of_the_folder(folder):
    damage(folder / "config.json", "is not a folder")


def test_no_config(folder):
    (folder / "config.json").unlink()
    damage(folder, "config.json is missing")


def test_a_folder_of_gguf(folder):
    (folder / "config.json").unlink()
    (folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    damage(folder, "model-Q4_K_M.gguf", "does not read GGUF")


def test_no_weights(folder):
    (folder / INDEX).unlink()
    damage(folder, "has no weights")


BAD_JSON = {
    "cut": (b'{"a": 1', "is not valid JSON"),
    "empty": (b"", "is not valid JSON"),
    "latin": (b'{"a": "\xe9"}', "is not UTF-8"),
    "deep": (b'{"a":' * 100_000, "nested too deeply"),
    "huge integer": (b'{"a": ' + b"9" * 5000 + b"}", "does not make sense"),
    "infinite": (b'{"a": 1e999}', "out of range"),
    "nan": (b'{"a": NaN}', "NaN is not a number"),
    "twice": (b'{"a": 1, "a": 2}', "'a' appears twice"),
    "list": (b"[1]", "holds a JSON list"),
    "null": (b"null", "holds a JSON null"),
}


@pytest.mark.parametrize("case", BAD_JSON)
@pytest.mark.parametrize("name", ["config.json", INDEX, "generation_config.json"])
def test_json_that_is_none(folder, name, case):
    text, part = BAD_JSON[case]
    (folder / name).write_bytes(text)
    damage(folder, name, part)


@pytest.mark.parametrize("case", BAD_JSON)
def test_a_header_that_is_no_json(folder, case):
    text, part = BAD_JSON[case]
    shards.write_raw(folder / FIRST, text, b"")
    damage(folder, f"the header of shard {FIRST}", part)


@pytest.mark.parametrize("value", [None, [], {}, "x", 3])
def test_an_index_without_a_map(folder, value):
    rewrite_index(folder, lambda index: index.update(weight_map=value))
    damage(folder, "has no weight_map")


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/passwd", "a/../../b", "", ".", "a\0b", "a\nb", "\ud800", "a\\b", 3, None]
)
def test_an_index_cannot_leave_the_folder(folder, file):
    rewrite_index(folder, lambda index: index["weight_map"].update({"model.norm.weight": file}))
    damage(folder, "model.norm.weight", "no file of this folder")


def test_an_index_that_names_a_tensor_its_shard_does_not_hold(folder):
    rewrite_index(folder, lambda index: index["weight_map"].update(stranger=FIRST))
    damage(folder, "stranger", FIRST, "does not hold it")


def test_missing_tensors_are_counted(folder):
    dropped = "model.norm.weight", "model.embed_tokens.weight"
    rewrite_index(folder, lambda index: [index["weight_map"].pop(name) for name in dropped])
    damage(folder, "tensor model.embed_tokens.weight is missing, and 1 more tensor.")


def test_a_wrong_shape(folder):
    wanted = TensorSpec("model.norm.weight", (77,), ("BF16",))
    with pytest.raises(CheckpointError, match=r"has the shape 160; config\.json asks for 77\."):
        Checkpoint.open(folder).validate([wanted])


def test_a_wrong_scale_shape(folder):
    name = "model.layers.0.self_attn.o_proj.weight_scale_inv"
    wanted = TensorSpec(name, (3, 2), ("F32",))
    with pytest.raises(CheckpointError, match=r"has the shape 2 x 2; config\.json asks for 3 x 2\."):
        Checkpoint.open(folder).validate([wanted])


def test_a_wrong_dtype(folder):
    wanted = TensorSpec("model.norm.weight", (160,), ("F32", "F16"))
    with pytest.raises(CheckpointError, match="is stored as BF16; F32 or F16 is expected"):
        Checkpoint.open(folder).validate([wanted])


ENTRIES = {
    "no object": (3, "has no description"),
    "unknown dtype": ({"dtype": "F3"}, "unknown dtype F3"),
    "no dtype": ({"dtype": None}, "unknown dtype"),
    "dtype list": ({"dtype": ["F32"]}, "unknown dtype"),
    "negative shape": ({"shape": [-2, 3]}, "no valid shape"),
    "boolean shape": ({"shape": [True, 3]}, "no valid shape"),
    "huge shape": ({"shape": [1 << 80]}, "no valid shape"),
    "nine dimensions": ({"shape": [1] * 9}, "no valid shape"),
    "fractional shape": ({"shape": [2.5]}, "no valid shape"),
    "shape of other size": ({"shape": [64, 161]}, "takes 20,608"),
    "no offsets": ({"data_offsets": None}, "no valid byte range"),
    "one offset": ({"data_offsets": [0]}, "no valid byte range"),
    "reversed": ({"data_offsets": [20480, 0]}, "no valid byte range"),
    "negative": ({"data_offsets": [-5, 20475]}, "no valid byte range"),
    "beyond the end": ({"data_offsets": [1 << 40, (1 << 40) + 20480]}, "its header promises"),
    "overlap": ({"data_offsets": [100, 20580]}, "overlap"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_a_bad_entry_in_a_header(folder, case):
    value, part = ENTRIES[case]

    def change(header):
        entry = header["model.embed_tokens.weight"]
        header["model.embed_tokens.weight"] = entry | value if isinstance(value, dict) else value

    rewrite_header(folder / FIRST, change)
    damage(folder, FIRST, part)


def test_bytes_that_no_tensor_owns(folder):
    rewrite_header(folder / FIRST, lambda header: header.pop("model.embed_tokens.weight"))
    damage(folder, "no tensor owns bytes")


def test_a_name_cannot_forge_terminal_output(folder):
    evil = "\x1b[2J\u202eevil" + "x" * 5000
    rewrite_index(folder, lambda index: index["weight_map"].update({evil: FIRST}))
    error = damage(folder, "\\x1b[2J\\u202eevil")
    assert len(error.message) < 600

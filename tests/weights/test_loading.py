import errno
import gc
import mmap
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors
import shards

import localmoe
from localmoe.errors import CancelledError, CheckpointError, OutOfMemoryError
from localmoe.hub.checkpoint import Checkpoint, TensorInfo
from localmoe.weights import load as loading
from localmoe.weights.layout import plan_layout
from localmoe.weights.load import load


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    return Checkpoint.open(shards.make(tmp_path / "model"))


def overwrite(tensor: TensorInfo, offset: int, data: bytes) -> None:
    with tensor.file.open("r+b") as file:
        file.seek(tensor.start + offset)
        file.write(data)


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    """By safetensors' own reader."""
    files = {tensor.file for tensor in checkpoint.tensors.values()}
    return {name: bytes(t["data"]) for file in files for name, t in safetensors.deserialize(file.read_bytes())}


def test_linears_have_the_checkpoints_own_bytes(checkpoint):
    store, wanted = load(checkpoint, shards.specs()), contents(checkpoint)
    name = "model.layers.1.self_attn.o_proj"
    linear = store.linear(name)
    assert (linear.weight.dtype, linear.weight.shape) == (np.uint8, (160, 160))
    assert linear.weight.tobytes() == wanted[f"{name}.weight"]
    assert (linear.scale.dtype, linear.scale.shape) == (np.float32, (2, 2))
    assert linear.scale.tobytes() == wanted[f"{name}.weight_scale_inv"]
    embedding = store.linear("model.embed_tokens")
    assert (embedding.weight.dtype, embedding.scale) == (np.uint16, None)
    assert embedding.weight.tobytes() == wanted["model.embed_tokens.weight"]


@pytest.fixture(params=["cached", "direct"])
def small_pieces(request, monkeypatch) -> bool:
    """Both ways to read, in pieces that are smaller than tensors."""
    monkeypatch.setattr(loading, "SMALL_BYTES", 0 if request.param == "direct" else 1 << 30)
    monkeypatch.setattr(loading, "DIRECT_PIECE_BYTES", 4096)
    monkeypatch.setattr(loading, "CACHED_PIECE_BYTES", 8192)
    return request.param == "direct"


NUM_NODES = [1, 2, 3, 4, 7]


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_experts_have_the_checkpoints_own_bytes(checkpoint, small_pieces, num_nodes):
    store, wanted = load(checkpoint, shards.specs(), nodes=range(num_nodes)), contents(checkpoint)
    for layer in range(shards.LAYERS):
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = store.experts(prefix)
        assert (experts.num_experts, len(experts.parts)) == (shards.EXPERTS, num_nodes)
        for e in range(shards.EXPERTS):
            for matrix, linear in zip(("gate", "up", "down"), experts.expert(e), strict=True):
                name = f"{prefix}.{e}.{matrix}_proj.weight"
                assert linear.weight.shape == checkpoint.tensors[name].shape
                assert linear.weight.tobytes() == wanted[name]
                assert linear.scale.tobytes() == wanted[f"{name}_scale_inv"]


def test_experts_on_one_node_are_views(checkpoint):
    experts = load(checkpoint, shards.specs()).experts("model.layers.0.mlp.experts")
    (part,) = experts.parts
    assert len(part.blob) == shards.EXPERTS
    for linear in experts.expert(2):
        assert np.shares_memory(linear.weight, part.blob)
        assert np.shares_memory(linear.scale, part.blob)


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_each_part_has_its_rows_and_the_scales_of_their_blocks(checkpoint, num_nodes):
    store, wanted = load(checkpoint, shards.specs(), nodes=range(num_nodes)), contents(checkpoint)
    name = "model.layers.1.mlp.experts"
    for part in store.experts(name).parts:
        for e in range(shards.EXPERTS):
            for matrix, place, linear in zip(
                ("gate", "up", "down"), (part.gate, part.up, part.down), part.expert(e), strict=True
            ):
                tensor = f"{name}.{e}.{matrix}_proj.weight"
                shape = checkpoint.tensors[tensor].shape
                weight = np.frombuffer(wanted[tensor], np.uint8).reshape(shape)
                scale = np.frombuffer(wanted[f"{tensor}_scale_inv"], np.float32).reshape(-1, -(-shape[1] // 128))
                stop = place.first_row + place.rows
                assert np.array_equal(linear.weight, weight[place.first_row : stop])
                blocks = slice(place.first_row // 128, -(-stop // 128) if place.rows else place.first_row // 128)
                assert np.array_equal(linear.scale, scale[blocks])


def test_nodes_that_this_machine_lacks_are_named(checkpoint):
    store = load(checkpoint, shards.specs(), nodes=[0, 900])
    assert store.nodes == (0, 900)
    assert "mbind was refused" in store.notes[-1]


@pytest.mark.parametrize("num_nodes", [1, 2, 7])
def test_matrices_begin_on_256_byte_boundaries(checkpoint, num_nodes):
    store = load(checkpoint, shards.specs(), nodes=range(num_nodes))
    parts = store.experts("model.layers.0.mlp.experts").parts
    arrays = [store.linear("model.embed_tokens").weight, store.linear("model.layers.0.self_attn.o_proj").scale]
    linears = [linear for part in parts for e in range(3) for linear in part.expert(e)]
    arrays += [array for linear in linears for array in (linear.weight, linear.scale)]
    assert {array.ctypes.data % 256 for array in arrays if array.size} == {0}
    assert {part.blob.ctypes.data % (2 << 20) for part in parts} == {0}
    assert {part.blob.shape[1] % 256 for part in parts} == {0}


def test_vectors_are_float32(checkpoint):
    store, wanted = load(checkpoint, shards.specs()), contents(checkpoint)
    norm = store.vector("model.norm.weight")
    bits = np.frombuffer(wanted["model.norm.weight"], np.uint16).astype(np.uint32) << 16
    assert norm.dtype == np.float32
    assert np.array_equal(norm, bits.view(np.float32))
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert store.vector(bias).tobytes() == wanted[bias]


def test_tensors_arrive_in_pieces(checkpoint, monkeypatch, small_pieces):
    with monkeypatch.context() as usual:
        usual.undo()
        whole = load(checkpoint, shards.specs())
    pieces = load(checkpoint, shards.specs())
    assert pieces.is_direct == small_pieces
    for layer in range(shards.LAYERS):
        prefix = f"model.layers.{layer}.mlp.experts"
        assert np.array_equal(whole.experts(prefix).parts[0].blob, pieces.experts(prefix).parts[0].blob)
    for name, tensor in checkpoint.tensors.items():
        if len(tensor.shape) == 1:
            assert np.array_equal(whole.vector(name), pieces.vector(name))


@pytest.mark.parametrize("text_bytes", [1, 2, 3, 4096])
def test_tensors_may_begin_at_any_byte(tmp_path, small_pieces, text_bytes):
    folder = shards.make(tmp_path, num_shards=1)
    header, data = shards.header_of(folder / "model.safetensors")
    header["__metadata__"] = {"x": "x" * text_bytes}
    shards.write_raw(folder / "model.safetensors", header, data)
    checkpoint = Checkpoint.open(folder)
    store, wanted = load(checkpoint, shards.specs()), contents(checkpoint)
    for name, tensor in checkpoint.tensors.items():
        if name.endswith("embed_tokens.weight"):
            assert store.linear(name.removesuffix(".weight")).weight.tobytes() == wanted[name]
        elif name.endswith("bias"):
            assert store.vector(name).tobytes() == wanted[name]
        elif name.endswith("o_proj.weight"):
            linear = store.linear(name.removesuffix(".weight"))
            assert linear.weight.tobytes() == wanted[name]
            assert linear.scale.tobytes() == wanted[f"{name}_scale_inv"]
        assert tensor.nbytes == len(wanted[name])


def test_how_weights_were_read_is_said(checkpoint, monkeypatch):
    cached = load(checkpoint, shards.specs())
    assert not cached.is_direct
    assert "through the page cache, where 1 MB may stay" in cached.notes[0]
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    direct = load(checkpoint, shards.specs())
    assert direct.is_direct
    assert "read directly, past the page cache" in direct.notes[0]
    assert "pages of" in direct.notes[1]


def test_a_filesystem_that_refuses_direct_reads_is_named(checkpoint, monkeypatch):
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    monkeypatch.setattr(os, "open", refuse)
    store = load(checkpoint, shards.specs())
    assert not store.is_direct
    assert "direct reads of model-00001-of-000002.safetensors were refused" in store.notes[0]
    assert store.linear("model.embed_tokens").weight.tobytes() == contents(checkpoint)["model.embed_tokens.weight"]


def test_a_disk_that_gives_a_little_at_a_time(checkpoint, monkeypatch, small_pieces):
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:999]], offset))
    assert (
        load(checkpoint, shards.specs()).linear("model.embed_tokens").weight.tobytes()
        == (contents(checkpoint)["model.embed_tokens.weight"])
    )


def test_progress_ends_at_the_total(checkpoint):
    seen = []
    load(checkpoint, shards.specs(), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (checkpoint.total_bytes, checkpoint.total_bytes)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", ["layers.1.mlp.experts.2.down_proj", "layers.0.self_attn.o_proj"])
def test_an_fp8_nan_code_names_tensor_file_and_byte(checkpoint, name, code):
    tensor = checkpoint.tensors[f"model.{name}.weight"]
    overwrite(tensor, 1234, bytes([code]))
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, shards.specs())
    assert caught.value.message == (
        f"tensor model.{name}.weight has the FP8 code 0x{code:02X}, which is not a number, "
        f"at byte {tensor.start + 1234:,} of shard {tensor.file.name}."
    )
    assert caught.value.hint


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -2.5])
def test_a_bad_scale_names_tensor_file_and_byte(checkpoint, value):
    tensor = checkpoint.tensors["model.layers.0.mlp.experts.1.up_proj.weight_scale_inv"]
    overwrite(tensor, 4, np.float32(value).tobytes())
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, shards.specs())
    for part in (tensor.name, f"the scale {value:g}", f"byte {tensor.start + 4:,}", tensor.file.name):
        assert part in caught.value.message


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_bf16_nan_is_found_in_matrices_and_vectors(checkpoint, name):
    overwrite(checkpoint.tensors[name], 20, np.uint16(0x7FC0).tobytes())
    with pytest.raises(CheckpointError, match=f"tensor {name} has a value that is not a finite number"):
        load(checkpoint, shards.specs())


def test_a_bias_that_is_infinite_is_found(checkpoint):
    name = "model.layers.0.mlp.gate.e_score_correction_bias"
    overwrite(checkpoint.tensors[name], 8, np.float32(np.inf).tobytes())
    with pytest.raises(CheckpointError, match=name):
        load(checkpoint, shards.specs())


def test_damage_in_a_tensor_that_no_one_asks_for_does_not_matter(checkpoint):
    overwrite(checkpoint.tensors["model.layers.1.self_attn.o_proj.weight"], 0, b"\x7f")
    load(checkpoint, [spec for spec in shards.specs() if "layers.1." not in spec.name])


def test_a_shard_cut_after_it_was_validated(checkpoint, small_pieces):
    tensor = max(checkpoint.tensors.values(), key=lambda t: t.stop)
    os.truncate(tensor.file, tensor.stop - 10)
    with pytest.raises(CheckpointError, match=f"shard {tensor.file.name} ended at byte {tensor.stop - 10:,} while"):
        load(checkpoint, shards.specs())


def test_a_shard_gone_after_it_was_validated(checkpoint):
    tensor = next(iter(checkpoint.tensors.values()))
    tensor.file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        load(checkpoint, shards.specs())


def test_a_disk_that_fails(checkpoint, monkeypatch, small_pieces):
    def fail(fd, buffers, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError, match=r"cannot be read at byte [\d,]+: Input/output error"):
        load(checkpoint, shards.specs())


def test_specs_are_validated_before_anything_is_read(checkpoint, monkeypatch):
    monkeypatch.setattr(os, "preadv", None)
    with pytest.raises(CheckpointError, match="is missing"):
        load(checkpoint, [*shards.specs(), *shards.fp8("stranger", 5, 5)])


def test_memory_is_refused_by_line_item_before_anything_is_allocated(checkpoint, monkeypatch):
    monkeypatch.setattr(loading, "available_memory", lambda: 120 << 20)
    monkeypatch.setattr(loading, "Arena", None)
    with pytest.raises(
        OutOfMemoryError, match=r"the weights need 0\.1 GB .* 0\.1 GB are available \(experts 0\.0, other"
    ):
        load(checkpoint, shards.specs())


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_what_is_asked_for_is_what_the_split_takes_to_the_byte(checkpoint, monkeypatch, num_nodes):
    layout = plan_layout((checkpoint.tensors[spec.name] for spec in shards.specs()), range(num_nodes))
    needed = layout.nbytes + loading.RESERVE_BYTES
    monkeypatch.setattr(loading, "from_reserved", lambda nbytes: 0)
    monkeypatch.setattr(loading, "available_memory", lambda: needed)
    assert load(checkpoint, shards.specs(), nodes=range(num_nodes)).nbytes == layout.nbytes
    monkeypatch.setattr(loading, "available_memory", lambda: needed - 1)
    with pytest.raises(OutOfMemoryError) as caught:
        load(checkpoint, shards.specs(), nodes=range(num_nodes))
    assert caught.value.exit_code == 5


def test_a_system_that_does_not_say_how_much_memory_is_left_decides_itself(checkpoint, monkeypatch):
    monkeypatch.setattr(loading, "available_memory", lambda: 0)
    assert load(checkpoint, shards.specs()).nbytes > 0


def test_a_system_that_refuses_the_memory(checkpoint, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(OutOfMemoryError, match="Cannot allocate memory"):
        load(checkpoint, shards.specs())


def test_cancelling_takes_less_than_100_ms(checkpoint, monkeypatch):
    real, asked = os.preadv, []
    monkeypatch.setattr(loading, "CACHED_PIECE_BYTES", 4096)
    monkeypatch.setattr(os, "preadv", lambda *args: time.sleep(0.03) or real(*args))

    def cancelled() -> bool:
        asked.append(time.perf_counter())
        return len(asked) > 3

    with pytest.raises(CancelledError):
        load(checkpoint, shards.specs(), cancelled=cancelled)
    assert time.perf_counter() - asked[-1] < 0.1
    assert not [t for t in threading.enumerate() if t.name.startswith("localmoe-load")]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("outcome", ["loaded", "damaged", "interrupted"])
def test_no_file_stays_open(checkpoint, outcome):
    before = open_files()
    if outcome == "damaged":
        overwrite(checkpoint.tensors["model.layers.0.self_attn.o_proj.weight"], 0, b"\x7f")
        with pytest.raises(CheckpointError):
            load(checkpoint, shards.specs())
    elif outcome == "interrupted":

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            load(checkpoint, shards.specs(), on_progress=interrupt)
    else:
        load(checkpoint, shards.specs())
    assert open_files() == before


def test_a_view_outlives_its_store(checkpoint):
    store = load(checkpoint, shards.specs())
    arena = weakref.ref(store._arena)
    weight = store.linear("model.embed_tokens").weight
    store.close()
    del store
    gc.collect()
    assert arena() is None
    assert weight.tobytes() == contents(checkpoint)["model.embed_tokens.weight"]


MEASURE = """
import sys
from pathlib import Path
import numpy as np

from localmoe.errors import LocalmoeError
from localmoe.hub.checkpoint import Checkpoint, TensorSpec
from localmoe.weights import load as loading
from localmoe.weights.layout import plan_layout
from localmoe.weights.load import load

def memory(key):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024

if sys.argv[2] == "direct":
    loading.SMALL_BYTES = 0
checkpoint = Checkpoint.open(sys.argv[1])
specs = [TensorSpec(t.name, t.shape, (t.dtype,)) for t in checkpoint.tensors.values()]
before = memory("VmRSS:")
error = None
try:
    store = load(checkpoint, specs)
except LocalmoeError as caught:
    error = caught
if error is None:
    peak = memory("VmHWM:") - before
    view = store.linear("a").weight
    store.close()
    del store, view
else:
    peak = memory("VmHWM:") - before  # the error and its traceback are still alive
print(peak, memory("VmRSS:") - before, "torch" in sys.modules)
"""


@pytest.mark.parametrize("way", ["cached", "direct"])
@pytest.mark.parametrize("damaged", [False, True])
def test_peak_memory_is_the_weights_and_all_of_it_comes_back(tmp_path, damaged, way):
    nbytes = 300 << 20
    data = np.full(nbytes, 0x3A, np.uint8)
    if damaged:
        data[-1] = 0x7F
    scale = np.ones((nbytes >> 14, 1), np.float32)
    tensors = {
        "a.weight": ("F8_E4M3", (nbytes >> 7, 128), data.tobytes()),
        "a.weight_scale_inv": ("F32", scale.shape, scale.tobytes()),
    }
    shards.write_shard(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), tmp_path, way]
    home = Path(localmoe.__file__).parent.parent
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=home).stdout
    peak, kept, torch = out.split()
    assert nbytes <= int(peak) < nbytes + (100 << 20)
    assert int(kept) < 24 << 20
    assert torch == "False"

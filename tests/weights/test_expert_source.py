"""Groups of experts from files and from memory: the same bytes in a slot, at the store's places."""

import numpy as np
import pytest
import tiny

from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.weights.expert_source import FileExperts, MemoryExperts, group_bytes, group_views
from localmoe.weights.layout import expert_of
from localmoe.weights.load import load

PREFIXES = ["model.layers.1.mlp.experts", "model.layers.2.mlp.experts"]


@pytest.fixture(params=["fp8", "bf16"], scope="module")
def checkpoint(request, tmp_path_factory):
    quant = {} if request.param == "fp8" else {"quantization_config": None}
    folder = tiny.make_checkpoint(tmp_path_factory.mktemp("m") / "model", shards=3, moe_intermediate_size=70, **quant)
    return Checkpoint.open(folder)


@pytest.fixture(scope="module")
def specs(checkpoint):
    return expected_tensors(read_config(checkpoint.config))


def filled(source, layer, first, count):
    """A slot with a group in it."""
    experts = source.experts(layer)
    slot = np.zeros(group_bytes(experts, count), np.uint8)
    buffer = np.empty(5 << 20, np.uint8)
    start = -buffer.ctypes.data % 4096
    steps = source.steps(layer, first, count, slot)
    for step in steps:
        step.fetch(buffer[start:])
        step.place(buffer[start:])
    return slot, sum(step.nbytes for step in steps)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (3, 2), (15, 1), (0, 16), (5, 7)])
@pytest.mark.parametrize("direct", [True, False])
def test_files_bring_what_the_store_has(checkpoint, specs, first, count, direct):
    store = load(checkpoint, specs, nodes=())
    files = FileExperts(checkpoint, PREFIXES, direct=direct)
    for layer, prefix in enumerate(PREFIXES):
        truth = store.experts(prefix)
        slot, nbytes = filled(files, layer, first, count)
        (view,) = group_views(files.experts(layer), count, slot)
        assert (view.reshape(count, -1) == truth.parts[0].blob[first : first + count]).all()
        tensors = checkpoint.tensors.values()
        wanted = [t for t in tensors if t.name.startswith(prefix) and first <= expert_of(t.name)[1] < first + count]
        assert nbytes == sum(t.nbytes for t in wanted)
    files.close()


@pytest.mark.parametrize("nodes", [(), (0, 1), (0, 1, 2)])
def test_memory_brings_every_part(checkpoint, specs, nodes):
    store = load(checkpoint, specs, nodes=nodes)
    source = MemoryExperts([store.experts(prefix) for prefix in PREFIXES])
    slot, nbytes = filled(source, 1, 4, 3)
    assert nbytes == len(slot)
    for part, view in zip(source.experts(1).parts, group_views(source.experts(1), 3, slot), strict=True):
        assert (view.reshape(3, -1) == part.blob[4:7]).all()


def test_all_else_rests_in_memory(checkpoint, specs):
    """A store without the experts says where matrices lie in them, and has none."""
    store = load(checkpoint, [spec for spec in specs if not expert_of(spec.name)], nodes=())
    with pytest.raises(KeyError):
        store.experts(PREFIXES[0])
    files = FileExperts(checkpoint, PREFIXES)
    store.stream(files.described())
    experts = store.experts(PREFIXES[0])
    assert experts.num_experts == 16 and len(experts.parts[0].blob) == 0
    assert experts.parts[0].blob.shape[1] > 0
    files.close()


def test_a_file_that_is_gone_is_told_before_anything_is_read(checkpoint, tmp_path):
    folder = tiny.make_checkpoint(tmp_path / "model")
    opened = Checkpoint.open(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        FileExperts(opened, PREFIXES)

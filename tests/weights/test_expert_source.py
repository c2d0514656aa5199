"""Groups of experts from files and from memory: the same bytes in a slot, at the store's places."""

from dataclasses import replace

import numpy as np
import pytest
import tiny

from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.weights.expert_files import FileExperts
from localmoe.weights.expert_source import MemoryExperts, group_bytes, group_views
from localmoe.weights.layout import expert_of
from localmoe.weights.load import load

PREFIXES = ["model.layers.1.mlp.experts", "model.layers.2.mlp.experts"]


@pytest.fixture(params=["fp8-70", "bf16-70", "fp8-64", "bf16-64"], scope="module")
def checkpoint(request, tmp_path_factory):
    """With 64 rows an expert's matrices follow each other in files as in memory, with 70 they do not."""
    kind, rows = request.param.split("-")
    quant = {} if kind == "fp8" else {"quantization_config": None}
    folder = tmp_path_factory.mktemp("m") / "model"
    return Checkpoint.open(tiny.make_checkpoint(folder, shards=3, moe_intermediate_size=int(rows), **quant))


@pytest.fixture(scope="module")
def specs(checkpoint):
    return expected_tensors(read_config(checkpoint.config))


def aligned(nbytes, offset=0):
    """Bytes that begin `offset` behind a block's start."""
    memory = np.full(nbytes + 8192, 255, np.uint8)
    return memory[-memory.ctypes.data % 4096 + offset :][:nbytes]


def filled(source, layer, first, count, offset=0):
    """A slot with a group in it, and the steps that filled it."""
    slot = aligned(group_bytes(source.experts(layer), count), offset)
    buffer = aligned(5 << 20)
    steps = source.steps(layer, first, count, slot)
    for step in steps:
        step.fetch(buffer)
        step.place(buffer)
    return slot, steps


def matrices(experts, view):
    """Weights and scales of the expert whose bytes `view` has."""
    (part,) = experts.parts
    whole = replace(part, blob=view[None])
    return [a for linear in whole.expert(0) for a in (linear.weight, linear.scale) if a is not None]


@pytest.mark.parametrize(("first", "count"), [(0, 1), (3, 2), (15, 1), (0, 16), (5, 7)])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("offset", [0, 256])
def test_files_bring_what_the_store_has(checkpoint, specs, first, count, direct, offset):
    store = load(checkpoint, specs, nodes=())
    files = FileExperts(checkpoint, PREFIXES, direct=direct)
    for layer, prefix in enumerate(PREFIXES):
        truth = store.experts(prefix)
        slot, steps = filled(files, layer, first, count, offset)
        views = files.views(layer, first, count, slot)
        for expert, view in enumerate(views, first):
            theirs = matrices(truth, truth.parts[0].blob[expert])
            assert all((a == b).all() for a, b in zip(matrices(files.experts(layer), view), theirs, strict=True))
        assert any(step.in_place for step in steps) == (offset == 0 and truth.parts[0].gate.rows == 64)
        tensors = checkpoint.tensors.values()
        wanted = [t for t in tensors if t.name.startswith(prefix) and first <= expert_of(t.name)[1] < first + count]
        assert sum(step.nbytes for step in steps) == sum(t.nbytes for t in wanted)
    files.close()


@pytest.mark.parametrize("nodes", [(), (0, 1), (0, 1, 2)])
def test_memory_brings_every_part(checkpoint, specs, nodes):
    store = load(checkpoint, specs, nodes=nodes)
    source = MemoryExperts([store.experts(prefix) for prefix in PREFIXES])
    slot, steps = filled(source, 1, 4, 3)
    assert sum(step.nbytes for step in steps) == len(slot)
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

import itertools

import pytest
import shards

from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hub.checkpoint import Checkpoint, TensorInfo
from localmoe.weights.layout import ALIGN_BYTES, Layout, plan_layout, resting_bytes


@pytest.fixture
def tensors(tmp_path) -> list[TensorInfo]:
    found = Checkpoint.open(shards.make(tmp_path)).tensors
    return [found[spec.name] for spec in shards.specs()]


def extents(layout: Layout) -> list[tuple[int, int]]:
    return sorted((place, place + resting_bytes(layout.tensors[name])) for name, place in layout.places.items())


def test_every_tensor_has_its_own_aligned_bytes(tensors):
    layout = plan_layout(tensors)
    assert set(layout.places) == {tensor.name for tensor in tensors}
    places = extents(layout)
    assert all(start % ALIGN_BYTES == 0 for start, _ in places)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(places))
    assert places[-1][1] <= layout.nbytes < sum(resting_bytes(t) for t in tensors) + ALIGN_BYTES * len(tensors)


def test_experts_lie_at_a_constant_stride(tensors):
    layout = plan_layout(tensors)
    for prefix, experts in layout.experts.items():
        assert experts.num_experts == shards.EXPERTS
        assert experts.stride % ALIGN_BYTES == 0
        for e in range(experts.num_experts):
            for matrix in ("gate", "up", "down"):
                name, base = f"{prefix}.{e}.{matrix}_proj.weight", experts.offset + e * experts.stride
                placement = experts.placement(matrix)
                assert layout.places[name] == base + placement.offset
                assert layout.places[f"{name}_scale_inv"] == base + placement.scale_offset
                assert (placement.rows, placement.cols) == layout.tensors[name].shape
    first, second = layout.experts.values()
    assert (first.stride, first.gate, first.up, first.down) == (second.stride, second.gate, second.up, second.down)
    assert second.offset == first.offset + shards.EXPERTS * first.stride
    assert layout.expert_bytes == second.offset + shards.EXPERTS * second.stride


def test_the_order_of_tensors_does_not_matter_to_experts(tensors):
    assert plan_layout(reversed(tensors)).experts.keys() == plan_layout(tensors).experts.keys()
    one, other = plan_layout(tensors), plan_layout(reversed(tensors))
    assert {e.stride for e in one.experts.values()} == {e.stride for e in other.experts.values()}
    assert [e.gate for e in one.experts.values()] == [e.gate for e in other.experts.values()]


def test_bf16_experts_have_no_scales(tensors):
    bf16 = [
        TensorInfo(t.name, "BF16", t.shape, t.file, t.start, t.start + 2 * t.nbytes)
        for t in tensors
        if not t.name.endswith("_scale_inv")
    ]
    for experts in plan_layout(bf16).experts.values():
        assert (experts.gate.dtype, experts.gate.scale_offset) == ("bf16", None)
        assert experts.up.offset == 2 * shards.INTER * shards.HIDDEN


def changed(tensors: list[TensorInfo], name: str, dtype: str) -> list[TensorInfo]:
    return [
        TensorInfo(t.name, dtype, t.shape, t.file, t.start, t.stop) if t.name.endswith(name) else t for t in tensors
    ]


def test_an_expert_that_is_stored_otherwise_is_refused(tensors):
    with pytest.raises(CheckpointError, match=r"expert 1 of .* is not stored like expert 0"):
        plan_layout(changed(tensors, "layers.0.mlp.experts.1.up_proj.weight", "BF16"))


def test_experts_in_another_dtype_are_refused(tensors):
    with pytest.raises(UnsupportedModelError, match="is stored as F32"):
        plan_layout(changed(tensors, "gate_proj.weight", "F32"))

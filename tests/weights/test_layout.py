import itertools

import pytest
import shards

from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hub.checkpoint import Checkpoint, TensorInfo
from localmoe.weights.layout import ALIGN_BYTES, PART_ROWS, Layout, is_vector, plan_layout, resting_bytes

NUM_NODES = [1, 2, 3, 4, 7]


@pytest.fixture
def tensors(tmp_path) -> list[TensorInfo]:
    found = Checkpoint.open(shards.make(tmp_path)).tensors
    return [found[spec.name] for spec in shards.specs()]


def extents(layout: Layout) -> list[tuple[int, int]]:
    spans = [span for name in layout.tensors for span in layout.spans(name) if not is_vector(layout.tensors[name])]
    vectors = [name for name, tensor in layout.tensors.items() if is_vector(tensor)]
    places = [(span.offset, span.offset + span.stop - span.start) for span in spans if span.stop > span.start]
    places += [(layout.places[name], layout.places[name] + resting_bytes(layout.tensors[name])) for name in vectors]
    return sorted(places)


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_every_tensor_has_its_own_aligned_bytes(tensors, num_nodes):
    layout = plan_layout(tensors, range(num_nodes))
    places = extents(layout)
    assert all(start % ALIGN_BYTES == 0 for start, _ in places)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(places))
    assert places[-1][1] <= layout.nbytes


def test_one_node_takes_hardly_more_than_the_files(tensors):
    layout = plan_layout(tensors)
    assert layout.nbytes < sum(resting_bytes(t) for t in tensors) + ALIGN_BYTES * len(tensors)
    assert (layout.regions, layout.nodes) == ([], ())
    assert plan_layout(tensors, [0]) == layout


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_every_row_lies_in_one_part(tensors, num_nodes):
    layout = plan_layout(tensors, range(num_nodes))
    for name, tensor in layout.tensors.items():
        end = 0
        for span in layout.spans(name):
            assert span.start <= end if name.endswith("_scale_inv") else span.start == end
            end = span.stop
        assert end == resting_bytes(tensor)


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_experts_lie_at_a_constant_stride(tensors, num_nodes):
    layout = plan_layout(tensors, range(num_nodes))
    first, second = layout.experts.values()
    for experts in (first, second):
        assert (experts.num_experts, len(experts.parts)) == (shards.EXPERTS, num_nodes)
        assert all(part.stride % ALIGN_BYTES == 0 for part in experts.parts)
    for one, other in zip(first.parts, second.parts, strict=True):
        assert (one.stride, one.gate, one.up, one.down) == (other.stride, other.gate, other.up, other.down)
        assert other.offset == one.offset + shards.EXPERTS * one.stride
    end = second.parts[-1].offset + shards.EXPERTS * second.parts[-1].stride
    assert end <= layout.expert_bytes < end + (2 << 20)


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_rows_are_shared_out_as_evenly_as_can_be(tensors, num_nodes):
    for experts in plan_layout(tensors, range(num_nodes)).experts.values():
        for matrix, rows in (("gate", shards.INTER), ("up", shards.INTER), ("down", shards.HIDDEN)):
            places = [part.placement(matrix) for part in experts.parts]
            assert [p.first_row for p in places] == [sum(p.rows for p in places[:n]) for n in range(num_nodes)]
            assert sum(p.rows for p in places) == rows
            assert max(p.rows for p in places) <= rows / num_nodes + PART_ROWS
            assert all(p.first_row % PART_ROWS == 0 for p in places if p.rows)


def test_scales_lie_with_the_rows_that_need_them_twice_at_a_split(tensors):
    one, other, last = plan_layout(tensors, [0, 1, 2]).experts["model.layers.0.mlp.experts"].parts
    assert (one.gate.rows, other.gate.first_row, other.gate.rows) == (64, 64, 64)  # both in block 0
    assert (last.gate.first_row, last.gate.rows) == (128, 72)
    assert [part.gate.scale_shape for part in (one, other, last)] == [(1, 2)] * 3


@pytest.mark.parametrize("num_nodes", [2, 3, 7])
def test_each_node_has_one_region_of_whole_pages_and_the_rest_is_for_all(tensors, num_nodes):
    nodes = tuple(range(0, 2 * num_nodes, 2))
    layout = plan_layout(tensors, nodes)
    assert layout.nodes == nodes
    assert [region.nodes for region in layout.regions] == [*((node,) for node in nodes), nodes]
    assert [region.start for region in layout.regions] == [0, *(region.stop for region in layout.regions[:-1])]
    assert layout.regions[-1].stop == layout.nbytes
    assert all(region.stop % (2 << 20) == 0 for region in layout.regions)
    for experts in layout.experts.values():
        for region, part in zip(layout.regions, experts.parts, strict=False):
            assert region.start <= part.offset
            assert part.offset + experts.num_experts * part.stride <= region.stop
    assert all(layout.places[name] >= layout.regions[-1].start for name in layout.places)


def test_the_order_of_tensors_does_not_matter_to_experts(tensors):
    one, other = plan_layout(tensors, [0, 1]), plan_layout(reversed(tensors), [0, 1])
    assert one.experts.keys() == other.experts.keys()
    for prefix, experts in one.experts.items():
        for mine, theirs in zip(experts.parts, other.experts[prefix].parts, strict=True):
            assert (mine.stride, mine.gate, mine.up, mine.down) == (theirs.stride, theirs.gate, theirs.up, theirs.down)


def test_bf16_experts_have_no_scales(tensors):
    bf16 = [
        TensorInfo(t.name, "BF16", t.shape, t.file, t.start, t.start + 2 * t.nbytes)
        for t in tensors
        if not t.name.endswith("_scale_inv")
    ]
    for experts in plan_layout(bf16).experts.values():
        (part,) = experts.parts
        assert (part.gate.dtype, part.gate.scale_offset) == ("bf16", None)
        assert part.up.offset == 2 * 2 * shards.INTER * shards.HIDDEN  # behind down and gate


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

"""Steps whose experts come from disk when they are chosen: the resident path's answers, and no needless reads."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny import SHAPES, make_checkpoint

sys.path.append(str(Path(__file__).parents[1] / "prefill"))
import parity_of_streams as streams

from localmoe import _native as native
from localmoe.decode.on_demand import OnDemand
from localmoe.devices.host import HostDevice
from localmoe.errors import CancelledError, CheckpointError, DeviceLostError
from localmoe.model.decoder import load_model
from localmoe.model.tensors import expected_tensors
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_cache import CachedExperts, resident_counts
from localmoe.weights.layout import expert_of
from localmoe.weights.load import load

parity = streams.parity
NAMES = ("v3", "moonlight", "no-shared", "odd-dims")


class Opened:
    """A case's checkpoint with the first `num_resident` experts of each layer in memory."""

    def __init__(self, case, num_resident, num_slots=3, **device):
        checkpoint = streams.Checkpoint.open(case.folder)
        specs = [s for s in expected_tensors(case.config) if not (e := expert_of(s.name)) or e[1] < num_resident]
        self.store = load(checkpoint, specs, nodes=())
        self.source = CachedExperts(streams.file_source(case), self.store)
        self.model = load_model(case.config, self.store)
        self.cache = case.cache()
        self.device = HostDevice(64 << 20, **device)
        args = self.model, self.cache, self.source
        self.program = OnDemand(*args, self.device, streams.POOL, parity.NUM_TOKENS, num_slots)
        self.pipeline = Pipeline(*args, [self.device], streams.POOL, parity.NUM_TOKENS, Shape(3, 2))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.close()
        self.pipeline.close()
        self.device.close()
        self.source.close()


@pytest.fixture(params=NAMES)
def case(request, tmp_path_factory):
    return parity.case_of(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


@pytest.mark.parametrize("num_resident", [0, 5, 16])
def test_a_prompt_and_then_steps_say_what_the_resident_path_says(case, num_resident):
    with Opened(case, num_resident) as opened:
        table = opened.cache.new_table()
        first, _ = parity.run(opened.pipeline, table, case.ids[:60], [60])
        rest, _ = parity.run(opened.program, table, case.ids[60:], [1] * 9 + [3, 28], start=60)
        assert opened.program.free_slots == 3
    parity.assert_near(np.concatenate([first, rest]), streams.resident(case, [100]), streams.SAME)


def test_only_chosen_experts_that_are_missing_are_read(v3):
    with Opened(v3, 6) as opened:
        table = parity.reserved(opened.cache.new_table(), 3)
        opened.program.forward(v3.ids[:3], [parity.Segment(table, 0, 3)], all_logits=True)
        layers = range(v3.config.num_moe_layers)
        chosen = [np.unique(opened.program._program.chosen(n)[:3]) for n in layers]
        one = sum(t.nbytes for n, t in streams.Checkpoint.open(v3.folder).tensors.items() if ".2.mlp.experts.7." in n)
        assert opened.program.read_bytes == one * sum(int((ids >= 6).sum()) for ids in chosen)


def test_with_all_experts_in_memory_nothing_is_read(v3):
    with Opened(v3, 16) as opened:
        parity.run(opened.program, opened.cache.new_table(), v3.ids, [100])
        assert opened.program.read_bytes == 0
        parity.run(opened.pipeline, opened.cache.new_table(), v3.ids, [100])
        assert opened.pipeline.loaded_bytes == (0,)


def test_a_cancel_does_not_wait_for_a_read_that_hangs(v3):
    hang, reached, flag = threading.Event(), threading.Event(), native.Flag()

    def probe(kind):
        reached.set()
        hang.wait()

    with Opened(v3, 0, probe=probe) as opened:
        table = parity.reserved(opened.cache.new_table(), 2)
        threading.Thread(target=lambda: (reached.wait(), flag.set())).start()
        with pytest.raises(CancelledError):
            opened.program.forward(v3.ids[:2], [parity.Segment(table, 0, 2)], cancel=flag)
        assert opened.program.free_slots == 3
        hang.set()
        found = opened.program.forward(v3.ids[:2], [parity.Segment(table, 0, 2)], all_logits=True)
    parity.assert_near(found, streams.resident(v3, [100])[:2], streams.SAME)


def test_a_lost_device_is_named(v3):
    with Opened(v3, 0) as opened:
        opened.device.lose("a test pulled it out")
        with pytest.raises(DeviceLostError, match="pulled it out"):
            parity.run(opened.program, opened.cache.new_table(), v3.ids[:2], [2])


def test_a_file_that_ends_early_is_named(tmp_path):
    case = parity.open_case(make_checkpoint(tmp_path / "model", 0, **SHAPES["v3"]))
    with Opened(case, 2) as opened:
        (file,) = case.folder.glob("*.safetensors")
        content = file.read_bytes()
        with file.open("r+b") as shortened:
            shortened.truncate(4096)
        with pytest.raises(CheckpointError, match="ended at byte"):
            parity.run(opened.program, opened.cache.new_table(), case.ids[:20], [20])
        file.write_bytes(content)
        found, _ = parity.run(opened.program, opened.cache.new_table(), case.ids[:20], [20])
    parity.assert_near(found, streams.resident(case, [100])[:20], streams.SAME)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.34, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("num_experts", [[16] * 5, [8], [3, 16, 9]])
def test_the_share_in_memory_is_never_exceeded(share, num_experts):
    counts = resident_counts(num_experts, share)
    assert all(0 <= count <= most for count, most in zip(counts, num_experts, strict=True))
    assert sum(counts) == int(share * sum(num_experts) + 1e-9)

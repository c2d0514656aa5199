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
from localmoe.model.programs import HostPrograms
from localmoe.model.tensors import expected_tensors
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights import expert_cache
from localmoe.weights.expert_cache import CachedExperts, resident_counts
from localmoe.weights.layout import expert_of
from localmoe.weights.load import load

parity = streams.parity
NAMES = ("v3", "moonlight", "no-shared", "odd-dims")


class Opened:
    """A case's checkpoint with room for `num_resident` experts of each layer in memory."""

    def __init__(self, case, num_resident, num_slots=3, **device):
        checkpoint = streams.Checkpoint.open(case.folder)
        specs = [s for s in expected_tensors(case.config) if not expert_of(s.name)]
        self.store = load(checkpoint, specs, nodes=())
        files = streams.file_source(case)
        self.source = CachedExperts(files, [num_resident] * case.config.num_moe_layers)
        self.store.stream(files.described())
        self.model = load_model(case.config, self.store)
        self.cache = case.cache()
        self.device = HostDevice(64 << 20, **device)
        programs = HostPrograms(self.model, self.cache, streams.POOL)
        self.program = OnDemand(case.config, programs, self.source, self.device, parity.NUM_TOKENS, num_slots)
        self.pipeline = Pipeline(
            case.config,
            self.cache,
            self.source,
            [self.device],
            [programs],
            parity.NUM_TOKENS,
            Shape(3, 2),
            on_group=self._on_group,
        )

    def _on_group(self, group, data, chosen):
        if group.is_first:
            self.source.count(group.layer, chosen)
        self.source.passes(group.layer, group.first, data)

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
        parity.run(opened.pipeline, opened.cache.new_table(), v3.ids, [100])
        layers = range(v3.config.num_moe_layers)
        resident = [opened.source.resident(n) for n in layers]
        table = parity.reserved(opened.cache.new_table(), 3)
        opened.program.forward(v3.ids[:3], [parity.Segment(table, 0, 3)], all_logits=True)
        chosen = [set(opened.program._program.chosen(n)[:3].ravel().tolist()) for n in layers]
        missing = sum(len(ids - set(here)) for ids, here in zip(chosen, resident, strict=True))
        assert opened.program.read_bytes == one_expert(v3) * missing > 0
        assert [opened.source.resident(n) for n in layers] == resident


def one_expert(case):
    """Bytes of one in the files."""
    tensors = streams.Checkpoint.open(case.folder).tensors
    return sum(t.nbytes for name, t in tensors.items() if ".2.mlp.experts.7." in name)


def test_with_all_experts_in_memory_nothing_is_read(v3):
    with Opened(v3, 16) as opened:
        parity.run(opened.pipeline, opened.cache.new_table(), v3.ids, [100])
        parity.run(opened.program, opened.cache.new_table(), v3.ids, [100])
        assert opened.program.read_bytes == 0
        parity.run(opened.pipeline, opened.cache.new_table(), v3.ids, [100])
        assert opened.pipeline.loaded_bytes == (0,)


def test_those_that_tokens_chose_most_stay(v3):
    """And give way to others that later tokens choose more."""
    with Opened(v3, 5) as opened:
        counts = np.zeros((v3.config.num_moe_layers, 16), int)
        for ids in (v3.ids, v3.ids[:7].repeat(9)):
            table = parity.reserved(opened.cache.new_table(), len(ids))
            found = opened.pipeline.forward(ids, [parity.Segment(table, 0, len(ids))], all_logits=True)
            for layer, chosen in enumerate(opened.pipeline.last_experts):
                counts[layer] += np.bincount(chosen.ravel(), minlength=16)
                hot = np.argsort(-counts[layer], kind="stable")[:5]
                least = counts[layer][hot].min()  # one that was met before it was worth it may stay
                kept = counts[layer][opened.source.resident(layer)]
                assert len(kept) == 5 and (kept >= least).sum() >= 4
            assert np.isfinite(found).all()
        parity.run(opened.pipeline, opened.cache.new_table(), v3.ids, [100])
        num_missing = v3.config.num_moe_layers * (16 - 5)
        assert opened.pipeline.loaded_bytes == (num_missing * one_expert(v3),)


def test_the_set_is_frozen_once_enough_tokens_were_seen(v3, monkeypatch):
    monkeypatch.setattr(expert_cache, "FROZEN_AFTER", 100)
    with Opened(v3, 5) as opened:
        found = []
        for ids in (v3.ids, v3.ids[:7].repeat(9)):
            table = parity.reserved(opened.cache.new_table(), len(ids))
            with opened.source.a_pass(lambda: False):
                opened.pipeline.forward(ids, [parity.Segment(table, 0, len(ids))], all_logits=True)
            found.append([opened.source.resident(n) for n in range(v3.config.num_moe_layers)])
        assert found[0] == found[1]


def test_passes_wait_for_each_other_while_they_change_the_set(v3):
    with Opened(v3, 5) as opened, opened.source.a_pass(lambda: False):
        second = opened.source.a_pass(lambda: True)
        with pytest.raises(CancelledError), second:
            pass


@pytest.mark.parametrize("seed", range(4))
def test_prompts_and_steps_at_the_same_time_say_what_they_would_alone(v3, seed):
    """While prompts change what rests in memory, steps compute with it."""
    with Opened(v3, 4) as opened:
        prompt, answer = opened.cache.new_table(), opened.cache.new_table()
        read, truth = [], streams.resident(v3, [100])

        def prompts():
            for _ in range(6):
                with opened.source.a_pass(lambda: False):
                    read.append(parity.run(opened.pipeline, prompt, v3.ids, [100])[0])
                prompt.rewind(0)

        reader = threading.Thread(target=prompts)
        reader.start()
        sizes = np.random.default_rng(seed).choice([1, 2, 3], 12).tolist()
        for _ in range(4):
            found, _ = parity.run(opened.program, answer, v3.ids[: sum(sizes)], sizes)
            parity.assert_near(found, truth[: sum(sizes)], streams.SAME)
            answer.rewind(0)
        reader.join()
        assert len(read) == 6
        for found in read:
            parity.assert_near(found, truth, streams.SAME)


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

"""Suite plan: rows of what was predicted and what was measured, and the checkpoints that it makes."""

import math
from dataclasses import replace

import pytest
from test_bench import TINY, Ears

from localmoe.bench import checkpoint, plan
from localmoe.bench.answers import Case
from localmoe.bench.checkpoint import LARGE, large_checkpoint, write_checkpoint
from localmoe.bench.plan import Subject
from localmoe.bench.rows import Report, Row
from localmoe.engine.cost.predict import forecast_decode, forecast_prefill
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.measured import Measured
from localmoe.engine.trial import choice_s, config_of, cpu_placement
from localmoe.errors import OutOfMemoryError
from localmoe.hardware import probe
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings

MEASURED = Measured("2026-11-30T00:00:00Z", "0.1.0", "avx2", 2, stream_bytes_s=20e9, fma_flop_s=200e9)
CASES = (Case("prefill", 64, 1), Case("decode", 48, 16))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(plan, "CASES", CASES)
    monkeypatch.setattr(plan, "measure_machine", lambda *_: MEASURED)


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "model", TINY, seed=1)
    return tmp_path / "model"


def test_rows_hold_what_was_measured_and_what_was_predicted(quick, folder):
    settings = Settings(threads=2)
    first, second = plan.measure(probe(), settings, str(folder), Ears())
    assert (first.case, second.case) == ("prefill-64-model", "decode-48-model")
    rates, config = rates_of(probe(), MEASURED), config_of(folder)
    placement = cpu_placement(settings)
    assert first.reference == pytest.approx(forecast_prefill(rates, config, placement, 64).tok_s)
    assert second.reference == pytest.approx(forecast_decode(rates, config, placement, 48 + 8).tok_s)
    for row in (first, second):
        assert (row.suite, row.metric, row.unit) == ("plan", "tok_s", "tok/s")
        assert row.isa and row.value > 0 and row.ratio == pytest.approx(row.value / row.reference)
        assert "predicted" in row.against


def test_without_a_model_the_embedded_one_and_two_others_are_run(quick, folder, monkeypatch):
    monkeypatch.setattr(plan, "large_checkpoint", lambda name, listener: folder)
    names = [subject.name for subject in plan._subjects(None, Ears())]
    assert names == ["guide", *LARGE]


def test_a_checkpoint_without_room_is_left_out_and_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(checkpoint, "available_memory", lambda: 1 << 30)
    ears = Ears()
    assert [subject.name for subject in plan._subjects(None, ears)] == ["guide"]
    assert len(ears.warned) == len(LARGE)
    assert "v3-shaped is left out: v3-shaped takes 4.4 GB of memory" in ears.warned


def test_a_disk_without_room_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(checkpoint, "DISK_SHARE", 1e9)
    monkeypatch.setattr(checkpoint, "available_memory", lambda: 0)  # unknown
    with pytest.raises(OutOfMemoryError, match="No space left"):
        large_checkpoint("v3-shaped", Ears())
    assert list((tmp_path / "localmoe/bench").iterdir()) == []


def test_chunks_and_cache_are_those_of_the_settings():
    found = cpu_placement(Settings(prefill_chunk=128, cache_dtype="bf16"))
    assert (found.chunk, found.cache_element_bytes, found.num_gpus) == (128, 2, 0)


def test_a_larger_vocabulary_takes_longer_to_choose_from():
    assert 0 < choice_s(100) < choice_s(1_000_000) < 5


def test_predictions_are_of_the_subjects_own_config(folder):
    rates = rates_of(probe(), MEASURED)
    predicted = [plan.predicted_tok_s(case, Subject("x", folder, "x"), rates, Settings()) for case in CASES]
    assert all(0 < value < math.inf for value in predicted)


@pytest.mark.parametrize("weight_format", ["fp8", "bf16"])
@pytest.mark.parametrize("q_lora_rank", [96, None])
def test_checkpoints_of_every_kind_are_complete(tmp_path, weight_format, q_lora_rank):
    shape = replace(TINY, weight_format=weight_format, q_lora_rank=q_lora_rank)
    write_checkpoint(tmp_path / "model", shape, seed=1)
    found = Checkpoint.open(tmp_path / "model")
    config = read_config(found.config)
    found.validate(expected_tensors(config))
    assert (config.weight_format, config.q_lora_rank) == (weight_format, q_lora_rank)
    size = sum(file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors"))
    assert shape.nbytes <= size < shape.nbytes + 100_000


def test_the_larger_ones_have_the_sizes_that_they_promise():
    assert LARGE["v3-shaped"].nbytes == pytest.approx(4.42e9, rel=0.01)
    assert LARGE["moonlight-4l"].nbytes == pytest.approx(5.02e9, rel=0.01)
    assert LARGE["moonlight-4l"].num_hidden_layers == 4


def test_long_names_keep_the_table_within_80_columns():
    row = Row("plan", "prefill-2048-moonlight-4l", "tok_s", 338.0, "tok/s", 356.0, 0.95, "avx512_bf16", plan.AGAINST)
    machine = {"cpu": {"model": "AMD EPYC 9355"}, "limits": {"usable_cores": 64}}
    lines = Report(machine, None, None, (row,), 63).to_table().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[2].split() == ["suite", "case", "value", "reference", "ratio", "kernels"]
    assert lines[3].startswith("plan  prefill-2048-moonlight-4l 338 tok/s")

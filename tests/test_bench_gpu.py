"""bench --device cuda, as far as it goes without a GPU: what it says, and cases on host devices that stand for one."""

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

sys.path.append(str(Path(__file__).parent / "engine"))
from host_gpus import HostGpus
from planned import GB, gpu, gpus, machine
from test_bench_slp import CASES, Ears

from localmoe.bench import on_gpu, slp
from localmoe.bench.run import parse_device, run_suites
from localmoe.engine.gpu_trials import GpuModel, locked_copy_rate, require_gpu
from localmoe.errors import NotReadyError, UsageError
from localmoe.kernels.gpu.chips import CHIPS
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.timed import on_device, timed_cases
from localmoe.settings import load_settings

MIB = 1 << 20


def test_a_machine_without_a_gpu_is_told_and_exits_with_not_ready():
    with pytest.raises(NotReadyError, match="there is no GPU to measure: no NVIDIA driver") as said:
        require_gpu(machine())
    assert said.value.exit_code == 3
    with pytest.raises(NotReadyError, match="the GPU cannot be measured: this torch is for CPUs"):
        require_gpu(machine(gpus=gpus(32 * GB)), HostGpus(why="this torch is for CPUs"))
    require_gpu(machine(gpus=gpus(32 * GB)), HostGpus())


def test_suites_and_devices_that_are_not_are_refused():
    with pytest.raises(UsageError, match="there is no suite load for --device cuda"):
        run_suites(("load",), load_settings({}), Ears(), "cuda")
    with pytest.raises(UsageError, match="there is no device 'gpu'"):
        parse_device("gpu")
    assert parse_device("cuda") == "cuda"


def test_answers_are_made_beside_a_gpu_whatever_is_faster():
    settings = load_settings({})
    assert on_gpu.on_gpu(settings).plan == "slp" and on_gpu.on_gpu(settings).said_by("plan") == "--plan"
    both = replace(settings, plan="dslp")
    assert on_gpu.on_gpu(both) is both


@pytest.mark.parametrize("count", [1, 2])
def test_the_streamed_cases_are_those_of_the_host(tmp_path, monkeypatch, count):
    monkeypatch.setattr(slp, "NUM_ROUNDS", 1)
    folder = tiny.make_checkpoint(tmp_path / "model", num_hidden_layers=3)
    found = gpus(*[32 * GB] * count)
    maker = HostGpus()
    with closing(GpuModel(folder, found, 128, maker)) as opened:
        rows = list(slp.measure_model(opened, Ears(), max_tokens=128, num_links=opened.num_gpus))
        assert maker.locked and any("page-locked" in note for note in opened.notes)
    assert [row.case for row in rows] == [case for case in CASES if count == 2 or case != "slp-two"]
    assert all(row.value > 0 and row.reference > 0 for row in rows)
    assert {row.isa for row in rows[:3]} == {"RTX 5090"}
    assert not maker.locked


def test_a_copy_is_timed_by_events(monkeypatch):
    monkeypatch.setattr("localmoe.engine.gpu_trials.COPY_BYTES", 8 * MIB)
    maker = HostGpus()
    rate, note = locked_copy_rate(gpu(), maker)
    assert rate > 1e6 and "are page-locked" in note and not maker.locked


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_the_kernels_that_matter_are_timed(chip):
    names = [case.name for case in timed_cases(chip)]
    form = "fp8" if chip.has_fp8 else "decoded"
    assert {f"gate_up-{form}-1024", f"down-{form}-64", f"linear-q_b-{form}-4096", "gate_up-bf16-1024"} <= set(names)
    assert {"prefill_attention-4k-of-4k", "decode_attention-8x32k"} <= set(names) and len(names) < 20


def test_a_launch_gets_memory_and_indices_that_mean_something():
    meta = {"device": "meta"}
    args = {
        "x": torch.empty(12, 8, dtype=torch.bfloat16, **meta),
        "gate": torch.empty(3, 4, 8, dtype=torch.float8_e4m3fn, **meta),
        "gate_scale": torch.empty(3, 1, 1, **meta),
        "tokens": torch.empty(12, dtype=torch.int32, **meta),
        "offsets": torch.empty(4, dtype=torch.int32, **meta),
        "out": torch.empty(12, 4, dtype=torch.bfloat16, **meta),
        "up": None,
        "num_rows": 4,
    }
    found = on_device(Launch(None, (1,), args, {}, 4, 1), torch.device("cpu")).args
    assert found["offsets"].tolist() == [0, 4, 8, 12] and found["tokens"].tolist() == list(range(12))
    assert found["up"] is None and found["num_rows"] == 4 and (found["gate_scale"] == 1).all()
    assert torch.isfinite(found["gate"].float()).all() and torch.isfinite(found["x"].float()).all()

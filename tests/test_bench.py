"""What `localmoe bench` measures, with what, and how it says so."""

import csv
import errno
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import localmoe
from localmoe import _native as native
from localmoe.bench import answers, arithmetic, bandwidth, checkpoint, kernels, startup, table, torch_linear
from localmoe.bench.checkpoint import Shape, bench_checkpoint, write_checkpoint
from localmoe.bench.prompts import prompt_of
from localmoe.bench.rows import Report, Row
from localmoe.bench.run import SUITES, parse_suites
from localmoe.bench.shapes import Shapes
from localmoe.bench.shard import _CODES, _VALUES
from localmoe.chat.message import Conversation, Message
from localmoe.engine.reading import weight_memory
from localmoe.engine.script import Script
from localmoe.engine.scripted import DEMO_INFO, ScriptedEngine
from localmoe.errors import LocalmoeError, OutOfMemoryError, UsageError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings

TINY = Shape(
    hidden_size=256,
    num_hidden_layers=2,
    intermediate_size=384,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=176,
    num_attention_heads=2,
    q_lora_rank=96,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=64,
    vocab_size=512,
)


class Ears:
    """Keeps what it hears."""

    def __init__(self):
        self.heard = []
        self.warned = []

    def progress(self, text):
        self.heard.append(text)

    def warn(self, text):
        self.warned.append(text)


def counted(engine, text):
    return engine.count_tokens(Conversation((Message("user", text),)))


def test_suites_are_taken_in_their_own_order():
    assert parse_suites("decode, kernels,decode") == ("kernels", "decode")
    assert parse_suites(",".join(SUITES)) == SUITES


@pytest.mark.parametrize(
    ("names", "said"), [("decod", "did you mean decode"), ("", "known: kernels"), ("x,y", "known:")]
)
def test_an_unknown_suite_is_answered_with_what_is_known(names, said):
    with pytest.raises(UsageError) as caught:
        parse_suites(names)
    assert said in caught.value.hint


def test_a_report_is_json_and_a_table():
    rows = (
        Row("decode", "decode-8192-added", "tok_s", 21.5, "tok/s", 24.0, 0.896, "avx512_bf16", "decode-128"),
        Row("kernels", "attention-4k-chunk", "gflop_s", 8021.5, "GFLOP/s", 10240.0, 0.783, "avx512_bf16", "FMA peak"),
        Row("startup", "help", "s", 0.153, "s", 0.14, 1.09, against="a bare typer program"),
        Row("prefill", "prefill-512", "tok_s", 1212.3, "tok/s", isa="avx2"),
    )
    machine = {"cpu": {"model": "AMD EPYC 9355"}, "limits": {"usable_cores": 64}}
    report = Report(machine, "guide", {"isa": "avx2", "num_threads": 63}, rows, 63)
    data = json.loads(json.dumps(report.to_json()))
    assert list(data) == ["machine", "model", "plan", "rows", "num_threads"]
    assert list(data["rows"][0]) == ["suite", "case", "metric", "value", "unit", "reference", "ratio", "isa", "against"]
    assert data["rows"][3]["reference"] is None
    table = report.to_table()
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.startswith("AMD EPYC 9355 · 64 cores · guide · 63 threads\n")
    assert "1,212 tok/s" in table
    assert "21.5 tok/s" in table
    assert [line for line in table.splitlines() if line.startswith(("a ", "b ", "c "))] == [
        "a decode-128",
        "b FMA peak",
        "c a bare typer program",
    ]
    assert "24.0 a" in table
    assert "0.140 c" in table


def test_the_checkpoint_is_complete_and_sound(tmp_path):
    write_checkpoint(tmp_path / "model", TINY, seed=1)
    found = Checkpoint.open(tmp_path / "model")
    found.validate(expected_tensors(read_config(found.config)))
    assert not np.isin(_CODES & 127, 127).any()
    assert abs(_VALUES.mean()) < 1
    for file in (tmp_path / "model").glob("*.safetensors"):
        assert file.stat().st_size > 1000


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name in ("a", "b", "other"):
        write_checkpoint(tmp_path / name, TINY, seed=2 if name == "other" else 1)
    shards = [(tmp_path / name / "model-layer-001.safetensors").read_bytes() for name in ("a", "b", "other")]
    assert shards[0] == shards[1] != shards[2]


def test_the_checkpoint_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(checkpoint, "Shape", lambda: TINY)
    ears = Ears()
    folder = bench_checkpoint(ears)
    made = (folder / "config.json").stat().st_mtime_ns
    assert bench_checkpoint(ears) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert len(ears.heard) == 1


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, OutOfMemoryError), (errno.EACCES, LocalmoeError)])
def test_a_checkpoint_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch, code, kind):
    def fails(folder: Path, shape: Shape, seed: int) -> None:
        folder.mkdir(parents=True)
        (folder / "half").write_text("x")
        raise OSError(code, "no")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(checkpoint, "write_checkpoint", fails)
    with pytest.raises(kind, match="cannot be written"):
        bench_checkpoint(Ears())
    assert not list((tmp_path / "localmoe/bench").iterdir())


@pytest.mark.parametrize("num_tokens", [64, 512, 2047])
def test_prompts_have_the_wanted_length(num_tokens):
    engine = ScriptedEngine()
    prompt = prompt_of(engine, num_tokens, seed=1)
    assert num_tokens - 2 <= counted(engine, prompt) <= num_tokens
    assert prompt != prompt_of(engine, num_tokens, seed=2)
    engine.close()


def test_each_case_has_a_row_and_the_longer_one_a_reference():
    engine = ScriptedEngine([Script("word " * 80)])
    first, second = answers.measure(engine, "prefill", Ears())
    engine.close()
    assert (first.case, first.metric, first.unit, first.reference) == ("prefill-512", "tok_s", "tok/s", None)
    assert second.case == "prefill-2048"
    assert second.reference == first.value > 0
    assert second.ratio == pytest.approx(second.value / first.value)


def test_what_does_not_fit_is_left_out_and_said():
    engine = ScriptedEngine([Script("word " * 80)])
    ears = Ears()
    rows = list(answers.measure(engine, "decode", ears))
    engine.close()
    assert [row.case for row in rows] == ["decode-128"]
    assert any("decode-8192 is left out" in note for note in ears.warned)


def test_room_is_made_for_the_longest_case():
    assert answers.context_for(("prefill",)) == 2050
    assert answers.context_for(("prefill", "decode")) == 8192 + answers.NUM_DECODED + 1
    assert answers.context_for(("startup",)) == 0


def test_a_model_that_stops_at_once_is_said():
    engine = ScriptedEngine(["No."])
    ears = Ears()
    assert list(answers.measure(engine, "decode", ears)) == []
    assert "decode-128 is left out: the model ends its answers after a few tokens" in ears.warned
    engine.close()


def test_what_takes_too_long_is_cut_off_and_said(monkeypatch):
    monkeypatch.setattr(answers, "ANSWER_S", {"prefill": 0.05, "decode": 0.05})
    engine = ScriptedEngine([Script("x", prefill_tick_s=0), Script("word", prefill_tick_s=0.2)], time_scale=1)
    ears = Ears()
    assert list(answers.measure(engine, "prefill", ears)) == []
    assert "prefill-512 is left out: not measured within 0 s" in ears.warned
    engine.close()


def test_an_engine_that_fails_ends_the_suite_with_its_words():
    engine = ScriptedEngine([Script("x", error=LocalmoeError("broken", "mend it"))])
    with pytest.raises(LocalmoeError, match="broken"):
        list(answers.measure(engine, "prefill", Ears()))
    engine.close()


def test_what_context_adds_stands_beside_the_time_of_its_flops():
    short, long = answers.CASES["decode"]
    info = replace(DEMO_INFO, isa="avx2", attention_flops=1000)
    rounds = [answers.Round({short: 1 / 0.010, long: 1 / (0.025 + noise)}, 1e9) for noise in (0, 0.001, -0.002)]
    rounds.append(answers.Round({short: 100.0}, 1e9))  # broken off
    (row,) = answers.added_rows(info, rounds)
    assert (row.case, row.metric, row.unit, row.isa) == ("decode-8192-added", "ms", "ms", "avx2")
    assert row.value == pytest.approx(15.0)
    assert row.reference == pytest.approx(1000 * 8064 / 1e9 * 1e3)
    assert row.ratio == pytest.approx(row.value / row.reference)
    assert row.against == "attention FLOPs / FMA peak"
    assert list(answers.added_rows(info, [answers.Round({short: 100.0}, 1e9)])) == []


SMALL = Shapes(
    hidden=256,
    inter=128,
    num_experts=8,
    top_k=2,
    heads=4,
    few_heads=2,
    context=512,
    chunk=48,
    moe_tokens=(1, 3),
    gemm_tokens=(9, 48),
    odd_matrices=((64, 136), (130, 40)),
    odd_rows=37,
    num_torch=2,
    num_pairs=2,
)
ARITHMETIC = ["attention-4k", "attention-4k-chunk", "attend-4k", "attend-8k", "gemm-9", "gemm-48"]
BANDWIDTH = ["gemv", "gemv-136", "gemv-40", "gemv-odd-rows", "moe-1", "moe-3", "moe-3-same", "gemv-bf16", "moe-1-bf16"]
TORCH = ["gemv-vs-torch", "gemv-vs-torch-fp32"]


def test_kernels_stand_beside_what_the_cores_can_do(monkeypatch):
    monkeypatch.setattr(torch_linear, "SPIN_S", 0.0)
    monkeypatch.setattr(arithmetic, "NUM_PEAKS", 1)
    rows = list(kernels.measure(Settings(isa="scalar", threads=2), Ears(), SMALL))
    assert [row.case for row in rows] == ARITHMETIC + BANDWIDTH + TORCH
    for row in rows:
        assert row.isa == "scalar"
        assert min(row.value, row.reference, row.ratio) > 0
        kind = "FMA peak" if row.case in ARITHMETIC else "streaming read (" if row.case in BANDWIDTH else "torch "
        assert row.against.startswith(kind)
        assert row.unit == ("GB/s" if row.case in BANDWIDTH else "GFLOP/s")


def test_kernels_that_memory_does_not_hold_are_left_out_and_said(monkeypatch):
    for room in (kernels, torch_linear):
        monkeypatch.setattr(room, "available_memory", lambda: 1000)
    monkeypatch.setattr(arithmetic, "NUM_PEAKS", 1)
    ears = Ears()
    assert [row.case for row in kernels.measure(Settings(), ears, SMALL)] == ARITHMETIC
    for left_out in ("gemv and moe are left out", *(f"{case} is left out: torch takes" for case in TORCH)):
        assert any(note.startswith(left_out) for note in ears.warned)


def test_a_missing_torch_is_said(monkeypatch):
    monkeypatch.setattr(torch_linear, "PEER", "import torch_that_is_not_there")
    ears = Ears()
    assert list(torch_linear.measure(kernels.make_workers(Settings(threads=1)), SMALL, ears)) == []
    assert any("No module named 'torch_that_is_not_there'" in note for note in ears.warned)


def test_the_kernels_need_no_torch_in_this_process():
    program = (
        "import sys; from localmoe.bench import kernels, run; from localmoe.settings import Settings;"
        "kernels.make_workers(Settings(threads=1)); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(localmoe.__file__).parent.parent)


def test_tokens_choose_at_random_and_others_in_each_run():
    one = bandwidth.choose(8, 32, 8, turn=0, all_same=False)
    assert one.shape == (1, 8, 8)
    assert all(len(set(token)) == 8 for token in one[0].tolist())
    assert 20 < len(np.unique(one)) <= 32
    assert not np.array_equal(one, bandwidth.choose(8, 32, 8, turn=1, all_same=False))
    assert np.array_equal(one, bandwidth.choose(8, 32, 8, turn=0, all_same=False))
    assert len(np.unique(bandwidth.choose(8, 32, 8, turn=0, all_same=True))) == 8


def test_a_table_holds_experts_that_do_not_overlap():
    for is_bf16 in (False, True):
        found = table.ExpertTable(SMALL, Ears(), is_bf16=is_bf16)
        assert found.flat.size == table.nbytes_of(SMALL)
        assert found.experts.shape[0] == SMALL.num_experts // (1 + is_bf16)
        assert found.experts.shape[1] >= 3 * SMALL.hidden * SMALL.inter * (1 + is_bf16)
        matrices = list(found.matrices(37, 40))
        assert {matrix.shape for matrix in matrices} == {(37, 40)}
        assert sum(matrix.nbytes for matrix in matrices) > 0.8 * found.flat.size
        assert not any(np.shares_memory(a, b) for a, b in pairwise(matrices))


def test_the_kernel_is_asked_for_pages_of_2_mb(tmp_path):
    array = weight_memory(16 << 20)
    array[:] = 1
    start = array.ctypes.data
    (tmp_path / "smaps").write_text(
        f"{start:x}-{start + array.nbytes:x} rw-p 00000000 00:00 0 \nRss: 16384 kB\nAnonHugePages:     8192 kB\n"
        f"{start + array.nbytes:x}-{start + 2 * array.nbytes:x} rw-p 00000000 00:00 0 \nAnonHugePages:  99999 kB\n"
    )
    assert table.huge_page_share(array, str(tmp_path / "smaps")) == 0.5
    assert 0 <= table.huge_page_share(array) <= 1
    (tmp_path / "smaps").write_text("")
    assert table.huge_page_share(array, str(tmp_path / "smaps")) == 0


def test_small_pages_are_said(monkeypatch):
    monkeypatch.setattr(table, "huge_page_share", lambda array: 0.25)
    ears = Ears()
    table.ExpertTable(SMALL, ears)
    assert ears.warned == ["only 25% of the weights lie on pages of 2 MB: reads and kernels are slower for it"]


def test_reads_and_peaks_are_checked():
    workers = kernels.make_workers(Settings(threads=1))
    data = np.zeros((2, 8192), np.uint8)
    for row in (-1, 2):
        with pytest.raises(ValueError, match="no such row"):
            native.read_seconds(workers.pool, data, [row], 0, workers.target)
    assert native.read_seconds(workers.pool, data, [1, 0, 1], 0, workers.target) > 0
    assert native.read_seconds(workers.pool, data, [], 0, workers.target) >= 0
    assert native.fma_flops(workers.pool, workers.target, 3) > 1e8


def test_a_target_that_this_machine_lacks_is_said():
    with pytest.raises(UsageError, match="sse9"):
        kernels.make_workers(Settings(isa="sse9"))


def test_a_bare_program_paints():
    assert 0.05 < startup.paint_s(startup.BARE_TEXTUAL) < 30


def test_a_program_that_paints_nothing_is_said():
    with pytest.raises(LocalmoeError, match="did not show"):
        startup.paint_s("print('nothing to see')")
    with pytest.raises(LocalmoeError, match="failed"):
        startup.help_s("raise SystemExit(3)")


def test_from_the_command_line(tmp_path):
    write_checkpoint(tmp_path / "model", TINY, seed=1)

    def bench(*arguments):
        checkout = str(Path(localmoe.__file__).resolve().parent.parent)
        return subprocess.run(
            [sys.executable, "-m", "localmoe", "bench", *arguments],
            capture_output=True,
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": checkout},
            timeout=240,
        )

    assert bench("--suite", "nothing").returncode == 2
    assert bench("--suite", "kernels", "--model", "./nowhere").returncode == 4
    done = bench("--suite", "prefill,decode", "--model", str(tmp_path / "model"), "--json", "--csv", "runs.csv")
    assert (done.returncode, done.stderr) == (0, b"")
    report = json.loads(done.stdout)
    assert [row["case"] for row in report["rows"]] == [
        "prefill-512",
        "prefill-2048",
        "decode-128",
        "decode-8192",
        "decode-8192-added",
    ]
    assert all(row["value"] > 0 and row["isa"] == report["plan"]["isa"] for row in report["rows"])
    assert report["machine"]["cpu"]["num_cores"] >= 1
    with (tmp_path / "runs.csv").open() as file:
        assert [row["case"] for row in csv.DictReader(file)] == [row["case"] for row in report["rows"]]
    (tmp_path / "list.csv").write_text("milk,eggs\n")
    refused = bench("--suite", "prefill", "--model", str(tmp_path / "model"), "--csv", "list.csv")
    assert refused.returncode == 2
    assert b"list.csv" in refused.stderr
    assert (tmp_path / "list.csv").read_text() == "milk,eggs\n"

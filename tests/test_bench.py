"""What `localmoe bench` measures, with what, and how it says so."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import localmoe
from localmoe.bench import answers, checkpoint, kernels, startup
from localmoe.bench.checkpoint import Shape, bench_checkpoint, write_checkpoint
from localmoe.bench.prompts import prompt_of
from localmoe.bench.rows import Report, Row
from localmoe.bench.run import SUITES, parse_suites
from localmoe.bench.shard import _CODES, _VALUES
from localmoe.chat.message import Conversation, Message
from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine
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
        Row("decode", "decode-8192", "tok_s", 21.5, "tok/s", 24.0, 0.896, "avx512_bf16"),
        Row("startup", "help", "s", 0.153, "s", 0.14, 1.09),
        Row("prefill", "prefill-512", "tok_s", 1212.3, "tok/s", isa="avx2"),
    )
    machine = {"cpu": {"model": "AMD EPYC 9355"}, "limits": {"usable_cores": 64}}
    report = Report(machine, "guide", {"isa": "avx2", "num_threads": 63}, rows)
    data = json.loads(json.dumps(report.to_json()))
    assert list(data) == ["machine", "model", "plan", "rows"]
    assert list(data["rows"][0]) == ["suite", "case", "metric", "value", "unit", "reference", "ratio", "isa"]
    assert data["rows"][2]["reference"] is None
    table = report.to_table()
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.startswith("AMD EPYC 9355 · 64 cores · guide · 63 threads\n")
    assert "1,212 tok/s" in table
    assert "21.5 tok/s" in table


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


@pytest.fixture
def small_kernels(monkeypatch):
    """The suite's kernels at sizes that take no time."""
    sizes = {"HIDDEN": 256, "INTER": 128, "HEADS": 4, "CONTEXT": 128, "NUM_PAIRS": 2, "MOE_TOKENS": (1, 3)}
    for name, value in (sizes | {"GEMM_TOKENS": (9, 48)}).items():
        monkeypatch.setattr(kernels, name, value)


def test_kernels_stand_beside_what_the_cores_can_do(small_kernels):
    rows = list(kernels.measure(Settings(isa="scalar", threads=2), Ears()))
    assert [row.case for row in rows] == ["attention-4k", "gemm-9", "gemm-48", "gemv", "moe-1", "moe-3"]
    for row in rows:
        assert row.isa == "scalar"
        assert row.value > 0
        assert row.reference > 0
        assert row.ratio > 0
    assert {row.unit for row in rows} == {"GFLOP/s", "GB/s"}


def test_kernels_that_memory_does_not_hold_are_left_out_and_said(small_kernels, monkeypatch):
    monkeypatch.setattr(kernels, "available_memory", lambda: 1000)
    ears = Ears()
    assert [row.case for row in kernels.measure(Settings(), ears)] == ["attention-4k", "gemm-9", "gemm-48"]
    assert any("left out" in note for note in ears.warned)


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
    done = bench("--suite", "prefill,decode", "--model", str(tmp_path / "model"), "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    report = json.loads(done.stdout)
    assert [row["case"] for row in report["rows"]] == ["prefill-512", "prefill-2048", "decode-128", "decode-8192"]
    assert all(row["value"] > 0 and row["isa"] == report["plan"]["isa"] for row in report["rows"])
    assert report["machine"]["cpu"]["num_cores"] >= 1

"""The measurement with a model larger than memory: its limit is real, and its rows say what was measured."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import tiny

from localmoe.bench.sheet import COLUMNS
from localmoe.hub.checkpoint import Checkpoint

BENCH = Path(__file__).resolve().parents[2] / "assets" / "bench"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("under_limit", BENCH / "under_limit.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_program_gets_no_more_memory_than_the_limit(script):
    try:
        limit = script.Limit(48 << 20)
    except (OSError, SystemExit):
        pytest.skip("control groups need root")
    try:
        take = "import sys; print(len(bytearray(int(sys.argv[1]) << 20)))"
        for mib, fits in ((8, True), (200, False)):
            done = subprocess.run(limit.around(["python3", "-c", take, str(mib)]), capture_output=True, text=True)
            assert (done.returncode == 0) == fits, done.stderr
        found = subprocess.run(limit.around(["cat", "/proc/self/cgroup"]), capture_output=True, text=True)
        assert limit.folder.name in found.stdout
    finally:
        limit.close()
    assert not limit.folder.exists()


def test_a_pass_is_all_experts_but_those_of_the_last_layer_that_nobody_chose(script, tmp_path):
    folder = tiny.make_checkpoint(tmp_path / "model", shards=2)  # two layers of 16 experts, 4 to a token
    tensors = Checkpoint.open(folder).tensors.items()
    one_layer = sum(t.nbytes for name, t in tensors if ".1.mlp.experts." in name)
    assert script.pass_bytes(folder) == one_layer + one_layer // 4


def test_rows_have_both_programs_and_the_disk(script):
    rounds = [
        {"disk-prefill-128": (60.0, 30.0), "disk-rate-128": (1.8, 2.0), "disk-decode": (12.0, 2.0)},
        {"disk-prefill-128": (80.0, 50.0), "disk-rate-128": (1.9, 2.0), "disk-decode": (14.0, 2.0)},
        {"disk-prefill-128": (70.0, 40.0), "disk-rate-128": (1.7, 2.0), "disk-decode": (13.0, 2.0)},
    ]
    base = dict.fromkeys(COLUMNS, "") | {"program": "localmoe 0.1.0", "commit": "abc", "target": "avx2"}
    rows = list(script.rows_of(rounds, base, "llama.cpp 0c1e570"))
    assert all(set(row) == set(COLUMNS) for row in rows)
    programs = [(row["program"].split()[0], row["case"]) for row in rows]
    assert programs == [
        ("llama.cpp", "disk-prefill-128"),
        ("localmoe", "disk-prefill-128"),
        ("localmoe", "disk-rate-128"),
        ("llama.cpp", "disk-decode"),
        ("localmoe", "disk-decode"),
    ]
    assert (rows[0]["value"], rows[0]["target"], rows[0]["ratio"]) == ("40", "", "")
    assert (rows[1]["value"], rows[1]["reference"], rows[1]["ratio"]) == ("70", "40", "1.75")
    assert (rows[2]["against"], rows[2]["ratio"], rows[2]["unit"]) == ("the disk's direct reads", "0.9", "GB/s")

"""The evidence in assets/bench: rows from both programs, and the README's table made from them."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from localmoe.bench.sheet import COLUMNS

BENCH = Path(__file__).resolve().parents[2] / "assets" / "bench"


def module(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def rows_of(file):
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def test_the_readme_shows_the_newest_results():
    table = module("table")
    readme = table.README.read_text(encoding="utf-8")
    assert readme.count(table.BEGIN) == readme.count(table.END) == 1
    machines = {heading: table.rows_of(name) for name, heading in table.MACHINES.items()}
    assert table.in_readme(readme, table.table(machines)) == readme


@pytest.mark.parametrize("name", module("table").MACHINES)
def test_the_results_have_benchs_columns_and_add_up(name):
    rows = rows_of(BENCH / f"{name}.csv")
    assert tuple(rows[0]) == COLUMNS
    for row in rows:
        assert float(row["value"]) > 0
        assert row["program"] and row["commit"] and row["machine"] and row["date"]
        assert bool(row["reference"]) == bool(row["against"]) == bool(row["ratio"])
        if row["reference"]:  # medians of each side, and of the pairs' ratios
            assert float(row["ratio"]) == pytest.approx(float(row["value"]) / float(row["reference"]), rel=0.5)


ROW = dict.fromkeys(COLUMNS, "") | {
    "date": "2026-11-29T20:13:35Z",
    "program": "localmoe 0.1.0",
    "commit": "abc",
    "machine": "AMD EPYC",
    "cores": "2",
    "threads": "2",
    "target": "avx2",
    "case": "gemv",
    "value": "20",
    "unit": "GB/s",
    "reference": "25",
    "against": "streaming read (plain)",
    "ratio": "0.8",
}


def test_a_table_shows_the_median_of_the_last_runs_of_each_machine():
    prompt = ROW | {"case": "prefill-512", "against": "llama.cpp abc, Q8_0", "unit": "tok/s", "commit": "def"}
    rate = ROW | {"case": "goodput-vs-split", "against": "more than split's", "date": "2026-11-30T20:13:35Z"}
    rows = [
        *(ROW | {"ratio": ratio} for ratio in ("0.1", "0.7", "0.9", "0.8")),  # the first of these is too long ago
        ROW | {"program": "llama.cpp abc", "ratio": "9.9"},
        prompt,
        prompt | {"against": "", "reference": "", "ratio": ""},
        rate,
    ]
    shown = module("table").table({"EPYC": rows, "Xeon": [ROW | {"target": "avx512"}]})
    assert shown.splitlines() == [
        "|  | aim | EPYC | Xeon |",
        "| --- | --- | --- | --- |",
        "| kernels, commits |  | avx2; abc | avx512; abc |",
        "| the fastest streaming read, GB/s |  | 25.0 | 25.0 |",
        "| a prompt of 512 tokens, tok/s |  | 20.0 |  |",
        "| a prompt of 512 tokens / llama.cpp's | 1.3 or more | 0.80 |  |",
        "| FP8 matrix, 1 token / streaming read | 0.90 or more | 0.80 | 0.80 |",
        "| the same / half of the cores each | 1.2 or more | > 0.80 |  |",
    ]


LLAMA_BENCH = """#!{python}
import json, sys
if "--help" in sys.argv:
    print({help!r})
    sys.exit()
value = {{name: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else "0" for name in ("-p", "-n", "-d", "-t")}}
rate = 100 if value["-p"] != "0" else 20 if value["-d"] == "0" else 10
print(json.dumps([{{"build_commit": "0c1e570", "avg_ts": rate * (2 if value["-t"] == "2" else 1)}}]))
"""
LOCALMOE = """
import csv, sys
names = {columns!r}
row = {row!r}
suite = sys.argv[sys.argv.index("--suite") + 1]
found = {{
    "prefill": [("prefill-512", 300, "", ""), ("prefill-2048", 400, 300, 1.3)],
    "decode": [("decode-128", 60, "", ""), ("decode-8192", 30, 60, 0.5), ("decode-8192-added", 16, 10, 1.6)],
}}[suite]
with open(sys.argv[sys.argv.index("--csv") + 1], "w", newline="") as file:
    writer = csv.DictWriter(file, names)
    writer.writeheader()
    for case, value, reference, ratio in found:
        writer.writerow(row | dict(suite=suite, case=case, value=value, reference=reference, ratio=ratio))
"""


@pytest.fixture
def stage(tmp_path):
    """Two programs that answer at once, and how to run the script with them."""
    row = ROW | {"against": "something"}
    (tmp_path / "localmoe.py").write_text(LOCALMOE.format(columns=COLUMNS, row=row))
    (tmp_path / "model").mkdir()
    (tmp_path / "model.gguf").touch()

    def run(*more, usage="--n-depth", file=tmp_path / "results.csv"):
        tool = tmp_path / "llama-bench"
        tool.write_text(LLAMA_BENCH.format(python=sys.executable, help=usage))
        tool.chmod(0o755)
        paths = ("--llama-bench", tool, "--gguf", tmp_path / "model.gguf", "--model", tmp_path / "model", "--csv", file)
        command = [sys.executable, BENCH / "side_by_side.py", *paths, "--rounds", "2"]
        ours = ("--localmoe", f"{sys.executable} {tmp_path / 'localmoe.py'}")
        return subprocess.run([*command, *ours, *more], capture_output=True, text=True)

    return run


def test_both_programs_rows_are_added(stage, tmp_path):
    file = tmp_path / "results.csv"
    for _ in range(2):
        done = stage()
        assert done.returncode == 0, done.stderr
    rows = rows_of(file)
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 2 * (5 + 5)
    theirs = {row["case"]: row for row in rows[:5]}
    assert {row["program"] for row in theirs.values()} == {"llama.cpp 0c1e570"}
    assert (theirs["decode-128"]["value"], theirs["decode-128"]["threads"]) == ("40", "2")
    assert theirs["decode-8192-added"]["value"] == "25"
    ours = {row["case"]: row for row in rows[5:10]}
    assert (ours["decode-128"]["reference"], ours["decode-128"]["ratio"]) == ("40", "1.5")
    assert ours["decode-128"]["against"] == "llama.cpp 0c1e570, Q8_0"
    assert (ours["decode-8192-added"]["reference"], ours["decode-8192-added"]["ratio"]) == ("10", "1.6")


def test_a_peer_without_depth_has_no_row_for_it(stage, tmp_path):
    assert stage(usage="no such option").returncode == 0
    cases = [row["case"] for row in rows_of(tmp_path / "results.csv") if row["program"].startswith("llama.cpp")]
    assert cases == ["prefill-512", "prefill-2048", "decode-128"]


def test_other_files_and_missing_paths_are_refused(stage, tmp_path):
    (tmp_path / "list.csv").write_text("milk,eggs\n")
    refused = stage(file=tmp_path / "list.csv")
    assert refused.returncode == 1
    assert "does not begin with the columns" in refused.stderr
    assert (tmp_path / "list.csv").read_text() == "milk,eggs\n"
    assert "there is no" in stage("--gguf", str(tmp_path / "other.gguf")).stderr
    assert "there is no folder" in stage(file=tmp_path / "missing" / "results.csv").stderr
    assert "cannot be run" in stage("--llama-bench", str(tmp_path / "other")).stderr

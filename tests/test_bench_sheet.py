"""The CSV file that `localmoe bench --csv` adds rows to."""

import csv
import os
import subprocess

import pytest

from localmoe import __version__
from localmoe.bench import sheet
from localmoe.bench.rows import Report, Row
from localmoe.bench.sheet import COLUMNS, Sheet, commit_of
from localmoe.errors import LocalmoeError, UsageError

ROWS = (
    Row("kernels", "gemv", "gb_s", 21.512345, "GB/s", 24.0, 0.8963, "avx2", "streaming read (four streams)"),
    Row("prefill", "prefill-512", "tok_s", 121.0, "tok/s", isa="avx2"),
)
REPORT = Report({"cpu": {"model": "An EPYC, of sorts"}, "limits": {"usable_cores": 2}}, "guide", None, ROWS, 2)


def read(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_rows_carry_all_that_they_were_measured_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "commit_of", lambda package: "763f09a")
    Sheet(tmp_path / "runs.csv").append(REPORT)
    gemv, prefill = read(tmp_path / "runs.csv")
    assert tuple(gemv) == COLUMNS
    assert gemv.pop("date").endswith("Z")
    assert gemv == {
        "program": f"localmoe {__version__}",
        "commit": "763f09a",
        "machine": "An EPYC, of sorts",
        "cores": "2",
        "threads": "2",
        "target": "avx2",
        "model": "",
        "suite": "kernels",
        "case": "gemv",
        "metric": "gb_s",
        "value": "21.5123",
        "unit": "GB/s",
        "reference": "24",
        "against": "streaming read (four streams)",
        "ratio": "0.8963",
    }
    assert (prefill["model"], prefill["reference"], prefill["ratio"]) == ("guide", "", "")


def test_later_runs_add_rows_below(tmp_path):
    file = tmp_path / "runs.csv"
    file.touch()  # an empty file is as good as none
    for _ in range(2):
        Sheet(file).append(REPORT)
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    Sheet(file).append(REPORT)
    assert len(read(file)) == 6
    assert file.read_text().count("date,") == 1


def test_opening_a_sheet_writes_nothing(tmp_path):
    Sheet(tmp_path / "runs.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"milk,eggs\n", b"\xff\xfe\x00", ",".join(COLUMNS[1:]).encode(), b"\n"])
def test_a_file_of_something_else_is_refused_and_stays(tmp_path, content):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(UsageError, match="does not begin with the columns"):
        Sheet(tmp_path / "list.csv")
    assert (tmp_path / "list.csv").read_bytes() == content


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    for file in (tmp_path, tmp_path / "missing" / "runs.csv", tmp_path / "file" / "runs.csv"):
        with pytest.raises(LocalmoeError, match="cannot be written"):
            Sheet(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_said(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(LocalmoeError, match="Permission denied"):
        Sheet(tmp_path / "runs.csv")


def test_the_commit_is_the_checkouts_or_the_version(tmp_path):
    package = tmp_path / "localmoe"
    package.mkdir()
    assert commit_of(package) == __version__
    (tmp_path / "pyproject.toml").touch()
    (package / "code.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit.startswith(commit_of(package))
    assert len(commit_of(package)) >= 7
    (tmp_path / "pyproject.toml").write_text("changed")  # as results are that a run adds to
    assert commit.startswith(commit_of(package))
    (package / "code.py").write_text("changed")
    assert commit_of(package).endswith("-dirty")

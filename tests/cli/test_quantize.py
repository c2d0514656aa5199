"""`localmoe quantize` as a command: what goes where, the exit codes, and stopping it."""

import json
import os
import signal

import pytest
from process import MAIN
from tiny import SHAPES, make_checkpoint

from localmoe.conversion.journal import read_journal


@pytest.fixture
def model(inside):
    return make_checkpoint(inside.folder / "mine", **SHAPES["moonlight"], shards=3)


def test_stdout_has_the_error_of_each_layer_and_the_folder_runs(home, inside, model):
    done = inside.run("quantize", "mine")
    assert done.returncode == 0, done.stderr
    head, *layers, total = done.stdout.decode().splitlines()
    assert head.split() == ["layer", "matrices", "error", "worst", "which"]
    assert [line.split()[0] for line in layers] == ["0", "1", "2"]
    assert total.split()[0] == "all" and 1.5 < float(total.split()[2]) < 3.5
    assert all(len(line) <= 80 for line in done.stdout.decode().splitlines())
    plan, where, complete = done.stderr.decode().splitlines()
    assert plan.startswith("mine: ") and "in BF16 become" in plan and "3 files" in where
    assert complete == f"mine is converted: localmoe chat -m {inside.folder / 'mine-fp8'}"
    done = home.run("ask", "-m", str(inside.folder / "mine-fp8"), "--max-tokens", "2", "--json", "Hi")
    assert done.returncode == 0 and json.loads(done.stdout)["usage"]["completion_tokens"] <= 2
    done = home.run("verify", str(inside.folder / "mine-fp8"))
    assert done.returncode == 0 and b"the structure is right" in done.stdout


def test_json_is_one_object_and_with_stream_events_before_it(inside, model):
    done = inside.run("quantize", "mine", "out", "--dry-run", "--json", "-q")
    plan = json.loads(done.stdout)
    assert (plan["path"], done.stderr) == (str(inside.folder / "out"), b"")
    assert [one["is_made"] for one in plan["files"]] == [False] * 3
    assert not [path for path in inside.folder.iterdir() if "out" in path.name]
    *events, last = map(json.loads, inside.run("quantize", "mine", "out", "--json", "--stream").stdout.splitlines())
    assert {event["event"] for event in events} == {"Converting"}
    assert [layer["layer"] for layer in last["layers"]] == [0, 1, 2]
    assert 0.015 < last["relative_error"] < 0.035
    assert last["matrices"] == sum(layer["matrices"] for layer in last["layers"])
    assert last["layers"][0]["worst"]["name"].startswith("model.layers.0.")
    assert last["total_bytes"] == plan["total_bytes"]


def test_quiet_says_nothing_but_the_result(inside, model):
    done = inside.run("quantize", "mine", "--quiet")
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"layer")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "Missing argument"),
        (("guide",), 2, "guide is FP8 already"),
        (("no-such-model",), 4, "there is no model or folder named"),
        (("moonlight-16b-a3b-instruct",), 4, "is not on this machine"),
        (("mine", "mine"), 2, "is where the original lies"),
        (("mine", "taken"), 2, "is there already"),
        (("mine", "--stream"), 2, "--stream belongs to --json"),
        (("empty",), 4, "config.json is missing"),
    ],
)
def test_what_cannot_be_converted(inside, model, arguments, code, message):
    (inside.folder / "taken").write_text("mine")
    (inside.folder / "empty").mkdir()
    done = inside.run("quantize", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr.decode()
    assert (inside.folder / "taken").read_text() == "mine"


def test_a_disk_without_room(inside, model, monkeypatch):
    monkeypatch.setattr("localmoe.conversion.plan._free_bytes", lambda folder: 10)
    for flags in ((), ("--dry-run",)):
        done = inside.run("quantize", "mine", *flags)
        assert done.returncode == 5 and "name a folder on a larger disk" in done.stderr.decode()


SLOW = """
import sys, time
from localmoe.conversion import shard
real = shard.quantise
def quantise(band):
    time.sleep(0.02)
    return real(band)
shard.quantise = quantise
"""


def test_interrupted_it_says_what_is_made_and_goes_on(home, inside, model):
    process = home.start("quantize", "mine", "--json", "--stream", program=SLOW + MAIN)
    for line in process.stdout:
        if json.loads(line).get("num_done"):
            break
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(30) == 130
    what, hint = process.stderr.read().decode().splitlines()[-2:]
    assert what.startswith("localmoe: paused: ") and "of 3 files of mine are converted" in what
    assert hint == "hint: the same command goes on from there."
    made = len(read_journal(home.folder / "mine-fp8.unfinished").shards)
    assert made >= 1
    done = home.run("quantize", "mine")
    assert done.returncode == 0 and f"{made} are made already" in done.stderr.decode()


def test_a_pipe_that_is_closed_early_is_no_error_and_loses_nothing(home, inside, model):
    ours, theirs = os.pipe()
    os.close(ours)
    process = home.start("quantize", "mine", "--json", "--stream", stdout=theirs)
    os.close(theirs)
    assert process.wait(timeout=60) == 0
    assert b"Traceback" not in process.stderr.read()
    assert home.run("quantize", "mine", "-q").returncode == 0


def test_it_imports_neither_torch_nor_textual(home, inside, model):
    report = "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    program = MAIN.replace("main()", "\ntry:\n    main()\nexcept SystemExit:\n    pass") + report
    loaded = set(home.run("quantize", "mine", program=program).stderr.decode().split())
    assert not loaded & {"torch", "textual", "rich", "transformers", "huggingface_hub", "typer.rich_utils"}

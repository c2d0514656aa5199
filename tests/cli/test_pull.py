"""`localmoe pull` as a command: what goes to stdout, what to stderr, the exit codes, and Ctrl+C."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from loopback_hub import Fault, files_in
from process import MAIN

from localmoe.errors import OutOfMemoryError
from localmoe.hub.download.patience import Patience

REPO = "someone/Tiny-MoE"
SHARD = "model-00002-of-000003.safetensors"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("localmoe.cli.pull.patience", Patience(tries=2, first_wait_s=0.01, stall_s=5))


def last_lines(done) -> list[str]:
    return done.stderr.decode().splitlines()[-2:]


def test_stdout_has_the_folder_and_nothing_else(home_of_hub, hub):
    done = home_of_hub.run("pull", REPO)
    assert done.returncode == 0, done.stderr
    folder = done.stdout.decode().removesuffix("\n")
    assert files_in(Path(folder)) == hub.repos[REPO].files
    plan, fetch, machine, complete = done.stderr.decode().splitlines()
    total = sum(map(len, hub.repos[REPO].files.values()))
    assert plan.startswith(f"{REPO} @ ") and f"{len(hub.repos[REPO].files)} files, {total / 1e6:.1f} MB" in plan
    assert fetch.startswith("to fetch: ") and "free at ~/hf/hub: " in fetch
    assert machine.startswith("this machine: runs it in ") and "of DRAM" in machine
    assert complete.endswith("checksums are right.")
    again = home_of_hub.run("pull", REPO, "--quiet")
    assert (again.returncode, again.stdout.decode(), again.stderr) == (0, folder + "\n", b"")
    assert home_of_hub.run("ask", "-m", REPO, "--max-tokens", "1", "Hi").returncode == 0


def test_json_is_one_object_and_with_stream_events_before_it(inside, hub):
    done = inside.run("pull", REPO, "--dry-run", "--json", "--quiet")
    plan = json.loads(done.stdout)
    assert plan["missing_bytes"] == plan["total_bytes"] == sum(map(len, hub.repos[REPO].files.values()))
    assert not (inside.folder / "hf" / "hub").exists()
    lines = inside.run("pull", REPO, "--json", "--stream", "--quiet").stdout.decode().splitlines()
    *events, last = map(json.loads, lines)
    assert {event["event"] for event in events} == {"Pulling", "Pulled"}
    assert (last["state"], last["repo"], last["path"]) == ("present", REPO, events[-1]["path"])
    assert last["fetched_bytes"] <= plan["missing_bytes"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "Missing argument"),
        ((REPO, "--stream"), 2, "--stream belongs to --json"),
        ((REPO, "--parallel", "0"), 2, "--parallel must be from 1 to 32"),
        (("deepseek-v9",), 4, "there is no model or folder named"),
        ((f"{REPO}@v9",), 7, "has no revision v9"),
        (("someone/else",), 7, "has no someone/else"),
        (("..",), 2, "is a folder"),
    ],
)
def test_what_cannot_be_pulled(inside, hub, arguments, code, message):
    done = inside.run("pull", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr.decode()


def test_the_embedded_model_is_here(inside):
    done = inside.run("pull", "guide", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["state"] == "present"


def test_offline_what_is_complete_is_here(inside, hub, monkeypatch):
    folder = inside.run("pull", REPO, "--quiet").stdout
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = inside.run("pull", REPO)
    assert (done.returncode, done.stdout) == (0, folder)
    assert "HF_HUB_OFFLINE" in done.stderr.decode()
    assert inside.run("pull", "a/b").returncode == 7


def test_a_line_that_breaks_says_how_to_go_on(inside, hub, impatient):
    hub.fault = lambda asked: Fault(hang_up=True) if asked.file == SHARD and asked.server == "cdn" else None
    done = inside.run("pull", REPO)
    assert (done.returncode, done.stdout) == (7, b"")
    assert f"`localmoe pull {REPO}` goes on: what is here stays" in last_lines(done)[1]
    assert "Next try in" in done.stderr.decode()
    hub.fault = lambda asked: None
    assert inside.run("pull", REPO).returncode == 0


def test_a_checksum_that_stays_wrong(inside, hub):
    hub.fault = lambda asked: Fault(flip=-1) if asked.file == SHARD and asked.server == "cdn" else None
    done = inside.run("pull", REPO)
    assert done.returncode == 6 and "checksum" in last_lines(done)[0]


def test_a_model_that_localmoe_does_not_run_is_not_fetched(inside, hub, model_files):
    hub.repos[REPO].files["config.json"] = model_files["config.json"].replace(b'"deepseek_v3"', b'"llama"', 1)
    done = inside.run("pull", REPO)
    assert done.returncode == 4 and "hf download" in last_lines(done)[1]
    assert not hub.sent[SHARD]


def test_a_model_that_this_machine_cannot_hold_is_not_fetched_unasked(inside, hub, monkeypatch):
    def refuse(*_, **__):
        raise OutOfMemoryError("needs 712 GB here", "get more.")

    monkeypatch.setattr("localmoe.engine.outlook.make_plan", refuse)
    done = inside.run("pull", REPO)
    assert done.returncode == 5 and last_lines(done) == [
        "localmoe: needs 712 GB here",
        "hint: get more. `--yes` fetches it all the same.",
    ]
    assert not hub.sent[SHARD]
    assert inside.run("pull", REPO, "--yes").returncode == 0


def test_a_disk_without_room(inside, hub, monkeypatch):
    monkeypatch.setattr("localmoe.hub.download.plan._free_bytes", lambda folder: 10)
    for flags in ((), ("--dry-run",)):
        done = inside.run("pull", REPO, *flags)
        assert done.returncode == 5 and "HF_HOME" in last_lines(done)[1]


def test_interrupted_it_says_what_is_here_and_goes_on(home_of_hub, hub):
    hub.bytes_per_s = 100_000
    process = home_of_hub.start("pull", REPO)
    wait_until(lambda: hub.sent[SHARD], process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines()[-2].startswith("localmoe: paused: ")
    assert err.decode().splitlines()[-1] == f"hint: `localmoe pull {REPO}` goes on from there."
    hub.bytes_per_s = 0
    done = home_of_hub.run("pull", REPO)
    assert done.returncode == 0 and "here already" in done.stderr.decode().splitlines()[0]


def wait_until(is_so, process) -> None:
    until_s = time.monotonic() + 30
    while not is_so() and process.poll() is None:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_pipe_that_is_closed_early_is_no_error(home_of_hub, hub):
    ours, theirs = os.pipe()
    os.close(ours)
    process = home_of_hub.start("pull", REPO, "--json", "--stream", stdout=theirs)
    os.close(theirs)
    assert process.wait(timeout=60) == 0
    assert b"Traceback" not in process.stderr.read()


def test_a_terminal_gets_a_board_and_then_a_line(home_of_hub, hub):
    hub.bytes_per_s = 300_000
    code, out, seen = home_of_hub.run_with_terminal("pull", REPO, program=MAIN)
    assert code == 0 and out.decode().startswith(str(home_of_hub.folder))
    assert "model-00001-of-000003" in seen and "of 8 files" in seen and "\x1b[" in seen
    assert seen.rstrip().endswith("checksums are right.")

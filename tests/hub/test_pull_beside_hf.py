"""The hub's stock client beside `pull`, against the same hub and in the same cache: each finds what the other left."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from loopback_hub import commit_of
from pulling import REPO, STEADY, contents, of_repo, plan_of, pull

from localmoe.events import Event
from localmoe.hub import hf_cache
from localmoe.hub.catalog import resolve
from localmoe.hub.download.progress import Notice
from localmoe.hub.download.pull import Pull


def hf(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    """The `hf` command."""
    program = "from huggingface_hub.cli.hf import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_hf_download_works_against_this_hub(big_hub, cache):
    done = hf("download", REPO, "--quiet")
    assert done.returncode == 0, done.stderr
    folder = cache / "models--someone--Their-MoE" / "snapshots" / commit_of(big_hub.repos[REPO].files)
    assert contents(folder) == big_hub.repos[REPO].files
    assert not big_hub.leaked


def test_hf_download_finds_what_pull_fetched(big_hub):
    folder = pull(patience=STEADY)
    big_hub.forget()
    assert hf("download", REPO, "--quiet", HF_HUB_OFFLINE="1").stdout.strip() == str(folder)
    done = hf("download", REPO, "--quiet", "--include", "*.safetensors", "--exclude", "consolidated*")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == folder
    assert not big_hub.asked("model-00001-of-000003.safetensors")
    done = hf("download", REPO, "config.json", "--quiet", HF_HUB_OFFLINE="1")
    assert Path(done.stdout.strip()) == folder / "config.json"
    assert "someone/Their-MoE" in hf("cache", "ls").stdout


def test_pull_finds_what_hf_download_fetched(big_hub):
    assert hf("download", REPO, "--quiet").returncode == 0
    big_hub.forget()
    assert plan_of().is_complete
    folder = pull(patience=STEADY)
    assert not [one for one in big_hub.seen if one.file]
    assert resolve(REPO).folder == folder and hf_cache.state_of(folder) == "present"


def test_pull_fetches_only_what_a_part_of_hf_download_left_out(big_hub):
    assert hf("download", REPO, "config.json", "model-00001-of-000003.safetensors", "--quiet").returncode == 0
    big_hub.forget()
    folder = pull(patience=STEADY)
    assert contents(folder) == of_repo(big_hub, folder)
    assert not big_hub.sent["config.json"] and not big_hub.sent["model-00001-of-000003.safetensors"]


def test_two_pulls_of_one_model_wait_for_each_other(big_hub):
    big_hub.bytes_per_s = 300_000
    told: list[Event] = []
    first = threading.Thread(target=lambda: pull(patience=STEADY))
    second = Pull(plan_of(), told.append, patience=STEADY)
    first.start()
    while not big_hub.sent["model-00001-of-000003.safetensors"]:
        pass
    second.run()
    first.join()
    assert [event.text for event in told if isinstance(event, Notice)] == [
        f"another localmoe is pulling {REPO}: waiting for it to end."
    ]
    files = big_hub.repos[REPO].files
    assert all(big_hub.sent[name] == len(files[name]) for name in files if name.startswith("model-"))


def test_one_that_waits_can_be_cancelled(big_hub):
    from localmoe.errors import CancelledError

    big_hub.bytes_per_s = 100_000
    running = Pull(plan_of(), lambda event: None, patience=STEADY)

    def run() -> None:
        with pytest.raises(CancelledError):
            running.run()

    first = threading.Thread(target=run)
    waiting = Pull(plan_of(), lambda event: waiting.cancel() if isinstance(event, Notice) else None, patience=STEADY)
    first.start()
    while not big_hub.sent["model-00001-of-000003.safetensors"]:
        pass
    with pytest.raises(CancelledError, match="paused"):
        waiting.run()
    running.cancel()
    first.join(10)
    assert not first.is_alive()

"""`localmoe verify`, `rm` and `models` as commands, on a model that was pulled."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import shards
from loopback_hub import files_in
from process import MAIN

import localmoe

REPO = "someone/Tiny-MoE"
SHARD = "model-00002-of-000003.safetensors"


@pytest.fixture
def folder(inside, hub):
    done = inside.run("pull", REPO, "--quiet", "--yes")
    assert done.returncode == 0, done.stderr
    hub.forget()
    return Path(done.stdout.decode().strip())


def damage(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def answered(answer: str, *arguments: str) -> tuple[int, str]:
    """Exit code and what a terminal shows of a run that asks."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"PYTHONPATH": str(Path(localmoe.__file__).parent.parent)},
    )
    os.close(theirs)
    seen, is_answered = b"", False
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        seen += piece
        if b"[y/N]" in seen and not is_answered:
            os.write(ours, answer.encode() + b"\n")
            is_answered = True
    os.close(ours)
    return process.wait(timeout=60), seen.decode()


def test_a_sound_model(inside, folder, hub):
    done = inside.run("verify", REPO)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"{REPO}: 8 files, ")
    assert done.stdout.decode().endswith("checksums and structure are right.\n")
    assert not hub.seen
    report = json.loads(inside.run("verify", "-m", str(folder), "--json").stdout)
    assert (report["ok"], report["files"], report["findings"], report["without_checksum"]) == (True, 8, [], [])


def test_a_damaged_file_is_told_and_only_it_is_fetched(inside, folder, hub):
    damage(folder / SHARD)
    done = inside.run("verify", REPO)
    assert done.returncode == 6
    assert done.stdout.decode().startswith(f"{SHARD} is damaged: its checksum is ")
    assert done.stderr.decode().splitlines() == [
        f"localmoe: {REPO} is damaged: {SHARD}.",
        f"hint: localmoe verify {REPO} --repair fetches only that file.",
    ]
    report = inside.run("verify", REPO, "--json")
    assert report.returncode == 6 and json.loads(report.stdout)["findings"][0]["file"] == SHARD
    done = inside.run("verify", REPO, "--repair", "--quiet")
    assert done.returncode == 0 and "are right" in done.stdout.decode()
    assert {name for name in hub.sent if name.endswith(".safetensors")} == {SHARD}
    assert files_in(folder) == hub.repos[REPO].files


def test_on_a_terminal_it_offers_to_fetch_it(inside, folder, hub):
    damage(folder / SHARD)
    code, seen = answered("n", "verify", REPO)
    assert code == 6 and "fetch that file again? [y/N]" in seen and not hub.seen
    code, seen = answered("y", "verify", REPO)
    assert code == 0 and "are right" in seen


def test_a_plain_folder(inside, tmp_path):
    made = shards.make(tmp_path / "mine")
    done = inside.run("verify", str(made))
    assert done.returncode == 0 and "nothing here tells their checksums" in done.stdout.decode()
    os.truncate(made / "model-00001-of-000002.safetensors", 1000)
    done = inside.run("verify", str(made), "--repair")
    assert done.returncode == 6 and done.stderr.decode().splitlines()[1].endswith("is damaged again.")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), 2), (("guide", "-m", "guide"), 2), (("deepseek-v3.1",), 4), (("guide",), 0), (("nix",), 4)],
)
def test_what_verify_takes(inside, arguments, code):
    assert inside.run("verify", *arguments).returncode == code


def test_rm_asks_and_frees_what_it_says(inside, folder, hub):
    refused = inside.run("rm", REPO)
    assert refused.returncode == 2 and f"localmoe rm {REPO} --yes" in refused.stderr.decode()
    code, seen = answered("n", "rm", REPO)
    assert code == 1 and "nothing was removed" in seen and folder.is_dir()
    total = sum(map(len, hub.repos[REPO].files.values()))
    assert f"free {total / 1e6:.1f} MB? [y/N]" in seen
    done = inside.run("rm", REPO, "--yes", "--json")
    removed = json.loads(done.stdout)
    assert (removed["freed_bytes"], removed["removed"], removed["kept"]) == (total + 40, [folder.name], [])
    assert not folder.exists()
    assert inside.run("rm", REPO, "--yes").returncode == 4


@pytest.mark.parametrize(("model", "code"), [("guide", 2), (".", 2), ("nix", 4), ("deepseek-v3", 4)])
def test_what_rm_refuses(inside, model, code):
    assert inside.run("rm", model, "--yes").returncode == code


def test_models_lists_what_else_is_in_the_cache_and_every_revision(inside, folder, hub):
    hub.repos[REPO].older["v1"] = dict(hub.repos[REPO].files) | {"generation_config.json": b"{}"}
    assert inside.run("pull", f"{REPO}@v1", "--quiet", "--yes").returncode == 0
    out = inside.run("models").stdout.decode()
    assert f"also in the Hugging Face cache\n{REPO} " in out
    assert f"  @{folder.name[:7]} main" in out and " v1 " in out
    assert all(len(line) <= 80 for line in out.splitlines())
    (mine,) = (m for m in json.loads(inside.run("models", "--json").stdout)["models"] if m["name"] == REPO)
    assert (mine["known"], mine["present"], mine["params"]) == (False, True, None)
    assert sorted(tuple(one["names"]) for one in mine["revisions"]) == [("main",), ("v1",)]
    done = inside.run("rm", f"{REPO}@v1", "--yes", "--json")
    assert json.loads(done.stdout)["kept"] == [folder.name] and folder.is_dir()

"""Pulls that are killed: after any time, at any system call; a later one ends them and fetches hardly a byte twice."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub, Repo, serving
from pulling import REPO, STEADY, contents, of_repo, plan_of, pull

from localmoe.hub import hf_cache
from localmoe.hub.download import part

MARK_BYTES, CHUNK_BYTES = 32 << 10, 64 << 10  # of the journal; the client's reads
CHILD = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
from localmoe.hub.download import part, pull as pulls
part.MARK_BYTES = {MARK_BYTES}
pulls.HEAD_BYTES = 4096
import filelock
from huggingface_hub import HfApi, errors, hf_hub_url
from huggingface_hub.utils import WeakFileLock, get_session
from pulling import STEADY, pull
print(flush=True)
sys.stdin.readline()
pull(at_once=3, patience=STEADY)
"""
CALLS = "openat,write,close,rename,symlink,symlinkat,unlink,ftruncate,fsync,mkdir,flock,recvfrom,sendto,lseek,read"


@pytest.fixture
def hub(big_hub, monkeypatch) -> LoopbackHub:
    monkeypatch.setattr(part, "MARK_BYTES", MARK_BYTES)
    monkeypatch.setattr("localmoe.hub.download.pull.HEAD_BYTES", 4096)
    return big_hub


def child() -> subprocess.Popen:
    """Ready to begin at a line on its stdin."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def begin(process: subprocess.Popen) -> None:
    process.stdin.write(b"\n")
    process.stdin.flush()


def end(process: subprocess.Popen) -> int:
    """Nothing that a test started outlives it."""
    try:
        return process.wait(timeout=30)
    finally:
        process.kill()


def assert_ended_by_a_later_pull(hub: LoopbackHub) -> None:
    """Byte-equal, nothing left behind, and of each file under way at most one mark and one read come twice."""
    plan = plan_of(patience=STEADY)
    for one in plan.files:
        blob = plan.place.blob(one.file)
        if not one.is_here and part.part_of(blob).exists():
            assert one.here_bytes >= part.part_of(blob).stat().st_size - MARK_BYTES - CHUNK_BYTES
    hub.bytes_per_s = 0
    hub.forget()
    folder = pull(patience=STEADY)
    files = of_repo(hub, folder)
    assert contents(folder) == files
    blobs = {path.name for path in (hf_cache.repository_folder(REPO) / "blobs").iterdir()}
    assert len(blobs) == len(files) and not any("." in name for name in blobs)
    planned = {one.file.path: one.missing_bytes for one in plan.files if one.file.path not in plan.documents}
    assert {name: hub.sent[name] for name in planned} == planned


@pytest.mark.parametrize("seed", range(3))
def test_killed_after_random_times(hub, seed):
    kills_at_random_times(hub, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_killed_after_random_times_many(hub, seed):
    kills_at_random_times(hub, seed)


def kills_at_random_times(hub: LoopbackHub, seed: int) -> None:
    rng = random.Random(seed)
    hub.bytes_per_s = 500_000
    for _ in range(rng.randrange(1, 4)):
        process = child()
        begin(process)
        time.sleep(rng.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        end(process)
    assert_ended_by_a_later_pull(hub)


@contextmanager
def traced(process: subprocess.Popen, *options: str) -> Iterator[None]:
    """strace looks on from here."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(process.pid), *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    line = tracer.stderr.readline()
    if b"attached" not in line:
        end(process)
        pytest.skip(f"strace cannot attach here: {line.decode().strip()}")
    try:
        yield
    finally:
        end(tracer)


@pytest.fixture(scope="module")
def calls_of_a_pull(tmp_path_factory, model_files) -> dict[str, int]:
    """How often each of CALLS is made by the thread that makes it most: strace counts by thread."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    folder = tmp_path_factory.mktemp("counted")
    with serving({REPO: Repo(dict(model_files))}) as running, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_ENDPOINT", running.endpoint)
        patched.setenv("HF_HOME", str(folder / "hf"))
        process = child()
        with traced(process, "-o", str(folder / "log"), "-e", f"trace={CALLS}"):
            begin(process)
            assert end(process) == 0
    made = Counter(re.findall(r"^(\d+) +(\w+)\(", (folder / "log").read_text(), re.MULTILINE))
    return {kind: max(count for (_, other), count in made.items() if other == kind) for _, kind in made}


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_a_random_system_call(hub, seed, calls_of_a_pull):
    kill_at_a_system_call(hub, seed, calls_of_a_pull)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 220))
def test_killed_at_a_random_system_call_many(hub, seed, calls_of_a_pull):
    kill_at_a_system_call(hub, seed, calls_of_a_pull)


def kill_at_a_system_call(hub: LoopbackHub, seed: int, calls: dict[str, int]) -> None:
    rng = random.Random(seed)
    kind = rng.choice(sorted(calls))
    when = rng.randrange(1, calls[kind] + 1)
    process = child()
    with traced(process, "-o", "/dev/null", "-e", f"trace={kind}", "-e", f"inject={kind}:signal=KILL:when={when}"):
        begin(process)
        end(process)
    assert_ended_by_a_later_pull(hub)

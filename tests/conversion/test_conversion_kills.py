"""Conversions that are killed, after any time and at any system call: a later one ends them with the same bytes."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from converting import contents, convert, plan_of
from tiny import SHAPES, make_checkpoint

CALLS = "openat,pwrite64,pread64,rename,unlink,ftruncate,fsync,mkdir,flock,write,close"
CHILD = f"""
import sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
from converting import convert
print(flush=True)
sys.stdin.readline()
convert(Path(sys.argv[1]), Path(sys.argv[2]), at_once=2)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("source") / "model", **SHAPES["moonlight"], shards=4)


@pytest.fixture(scope="module")
def truth(source, tmp_path_factory):
    """What an undisturbed conversion makes."""
    return contents(convert(source, tmp_path_factory.mktemp("truth") / "out"))


def child(source: Path, out: Path) -> subprocess.Popen:
    """Ready to begin at a line on its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    return process


def begin(process: subprocess.Popen) -> None:
    process.stdin.write(b"\n")
    process.stdin.flush()


def end(process: subprocess.Popen) -> None:
    try:
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()


def assert_ended_by_a_later_run(source: Path, out: Path, truth: dict[str, bytes]) -> None:
    """A folder under its own name is whole; what is noted as made is not made again."""
    if out.exists():
        assert contents(out) == truth
        return
    plan = plan_of(source, out)
    made = {t.name: (plan.unfinished / t.name).stat().st_ino for t in plan.targets if plan.has(t)}
    convert(source, out)
    assert contents(out) == truth
    assert {name: (out / name).stat().st_ino for name in made} == made
    assert not plan.unfinished.exists()


@pytest.mark.parametrize("seed", range(3))
def test_killed_after_random_times(source, truth, tmp_path, seed):
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        if not (tmp_path / "out").exists():
            process = child(source, tmp_path / "out")
            begin(process)
            time.sleep(rng.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            end(process)
    assert_ended_by_a_later_run(source, tmp_path / "out", truth)


@pytest.fixture(scope="module")
def calls(source, tmp_path_factory) -> dict[str, int]:
    """How often each of CALLS is made by the thread that makes it most: strace counts by thread."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    folder = tmp_path_factory.mktemp("counted")
    process = child(source, folder / "out")
    trace(process, "-o", str(folder / "log"), "-e", f"trace={CALLS}")
    made = Counter(re.findall(r"^(\d+) +(\w+)\(", (folder / "log").read_text(), re.MULTILINE))
    return {kind: max(count for (_, other), count in made.items() if other == kind) for _, kind in made}


def trace(process: subprocess.Popen, *options: str) -> None:
    """Lets it run with strace looking on, to its end."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(process.pid), *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    line = tracer.stderr.readline()
    if b"attached" not in line:
        process.kill()
        end(process)
        pytest.skip(f"strace cannot attach here: {line.decode().strip()}")
    begin(process)
    end(process)
    end(tracer)


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_a_random_system_call(source, truth, tmp_path, seed, calls):
    kill_at_a_system_call(source, truth, tmp_path, seed, calls)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 180))
def test_killed_at_a_random_system_call_many(source, truth, tmp_path, seed, calls):
    kill_at_a_system_call(source, truth, tmp_path, seed, calls)


def kill_at_a_system_call(source, truth, tmp_path, seed: int, calls: dict[str, int]) -> None:
    rng = random.Random(seed)
    kind = rng.choice(sorted(calls))
    when = rng.randrange(1, calls[kind] + 1)
    process = child(source, tmp_path / "out")
    trace(process, "-o", "/dev/null", "-e", f"trace={kind}", "-e", f"inject={kind}:signal=KILL:when={when}")
    assert_ended_by_a_later_run(source, tmp_path / "out", truth)

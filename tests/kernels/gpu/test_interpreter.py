"""The correctness tests in Triton's interpreter, which needs no GPU but a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import localmoe

HERE = Path(__file__).parent
FILES = sorted(p.name for p in HERE.glob("test_*.py") if "device" in p.read_text() and p != Path(__file__))


def run(files: list[str], marker: str) -> None:
    names = [str(HERE / file) for file in files]
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", marker, *names]
    package = str(Path(localmoe.__file__).parents[1])  # the same that this process tests
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": package}
    done = subprocess.run(command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 5), done.stdout[-6000:] + done.stderr[-2000:]  # 5: none has this marker
    assert marker == "slow" or " passed" in done.stdout, done.stdout


@pytest.mark.timeout(900)
def test_kernels_match_the_reference():
    run(FILES, "not slow")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", FILES)
def test_kernels_match_the_reference_over_more_shapes(file):
    run([file], "slow")

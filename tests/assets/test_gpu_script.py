"""The script of checks that take a real GPU, where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "assets" / "bench" / "gpu.sh"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the script would run its checks")
def test_without_a_gpu_it_says_so_and_exits_with_not_ready():
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "sees no GPU here: nothing was checked" in done.stdout


def test_its_shell_is_sound():
    subprocess.run(["bash", "-n", SCRIPT], check=True)

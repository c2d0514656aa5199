"""The AVX-512 kernels' own source, executed on any machine: each instruction in portable C, by SIMDe."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import simde_py

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
FLAGS = ("-std=c++20", "-O1", "-w", "-ffp-contract=off", f"-I{NATIVE}")
SIMULATED = (f"-I{HERE / 'simde'}", f"-I{simde_py.get_include()}")  # first of all: it has an immintrin.h


def compile_object(source: Path, out: Path, *flags: str) -> Path:
    command = ["g++", *FLAGS, *flags, "-c", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.timeout(900)
def test_every_op_and_shape_agrees_with_scalar(tmp_path):
    sources = [
        (NATIVE / "targets/avx512.cpp", tmp_path / "avx512.o", *SIMULATED),
        (NATIVE / "targets/scalar.cpp", tmp_path / "scalar.o"),
        (HERE / "simde/compare.cpp", tmp_path / "compare.o", "-DTARGET=kAvx512Kernels"),
    ]
    with ThreadPoolExecutor(2) as workers:
        objects = list(workers.map(lambda args: compile_object(*args), sources))
    program = tmp_path / "compare"
    subprocess.run(["g++", *map(str, objects), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] or done.returncode

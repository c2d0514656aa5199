"""The AVX-512 and AMX kernels' own source, executed on any machine: each instruction in portable C, by SIMDe."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import simde_py

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
# Not inlined, the targets compile in half of the time.
FLAGS = ("-std=c++20", "-O0", "-w", "-ffp-contract=off", "-DKERNEL_INLINED=", f"-I{NATIVE}")
HEADERS = (f"-I{HERE / 'simde'}", f"-I{simde_py.get_include()}")  # first of all: there is an immintrin.h
SIMULATED = ("-DSIMDE_NO_INLINE", *HEADERS)
TARGETS = ["avx512", "avx512_zen", "avx512_bf16", "amx_bf16"]


def tables(targets: list[str]) -> str:
    """The targets' tables of kernels, as compare.cpp and ops.cpp want them."""
    return "-DTARGETS=" + ",".join(f"&k{name.title().replace('_', '')}Kernels" for name in targets)


def compile_object(source: Path, out: Path, *flags: str) -> Path:
    command = ["g++", *FLAGS, *flags, "-c", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compares a simulated target with scalar."""
    folder = tmp_path_factory.mktemp("simulated")
    sources = [(NATIVE / f"targets/{target}.cpp", folder / f"{target}.o", *SIMULATED) for target in TARGETS]
    sources += [
        (NATIVE / "targets/scalar.cpp", folder / "scalar.o"),
        (HERE / "simde/compare.cpp", folder / "compare.o", tables(TARGETS)),
    ]
    with ThreadPoolExecutor(2) as workers:
        objects = list(workers.map(lambda args: compile_object(*args), sources))
    subprocess.run(["g++", *map(str, objects), "-o", str(folder / "compare")], check=True)
    return folder / "compare"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
def test_every_op_and_shape_agrees_with_scalar(program, target):
    done = subprocess.run([program, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] or done.returncode

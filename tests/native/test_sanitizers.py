"""The pool under ThreadSanitizer; kernels and ops under AddressSanitizer and UndefinedBehaviorSanitizer.

No Python runs in these programs: all of their code is sanitized, and what they allocate ends where it ends.
"""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_avx512_simulated import compile_object, tables
from test_object_code import CMAKE, NATIVE, flags_of

from localmoe import _native as native

pytestmark = pytest.mark.timeout(900)  # compiling takes most of it
HERE = Path(__file__).parent
TARGETS = native.supported_targets()
SOME = list(dict.fromkeys((TARGETS[0], TARGETS[-1])))
CORE = [NATIVE / "pool.cpp", NATIVE / "program.cpp", *sorted(NATIVE.glob("ops/*.cpp"))]
# Not inlined, the targets compile in seconds instead of minutes, and no read is optimised away.
ADDRESS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-O1", "-g1", "-fsanitize=thread")
FEW = 16  # of so many ops' cases one is run each time


def link(objects: list[Path], out: Path, *flags: str) -> Path:
    subprocess.run(["g++", *flags, *map(str, objects), "-o", str(out), "-pthread"], check=True)
    return out


def target_flags(name: str) -> list[str]:
    """What CMake compiles the target's file with."""
    options = re.search(
        rf'^set_source_files_properties\([^)]*targets/{name}\.cpp[^)]* "\$\{{(\w+)\}}', CMAKE, re.MULTILINE
    )
    return flags_of(options[1]) if options else []


def run(program: Path, *args: object) -> None:
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[:6000] or done.returncode


def programs(folder: Path, targets: list[str]) -> Path:
    """A folder with the programs `compare` and `ops`, for these targets."""
    kernels = [(NATIVE / f"targets/{name}.cpp", folder / f"{name}.o", *target_flags(name)) for name in targets]
    core = [(source, folder / f"core-{source.stem}.o") for source in CORE]
    mains = [
        (HERE / f"{name}.cpp", folder / f"main-{Path(name).stem}.o", tables(targets))
        for name in ("simde/compare", "sanitized/ops")
    ]
    with ThreadPoolExecutor(2) as workers:
        made = list(workers.map(lambda job: compile_object(*job, *ADDRESS), [*kernels, *core, *mains]))
    *objects, compare, ops = made
    link([compare, *objects], folder / "compare", *ADDRESS)
    link([ops, *objects], folder / "ops", *ADDRESS)
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Path:
    """Programs for the first target of this machine and the best one."""
    return programs(tmp_path_factory.mktemp("address"), SOME)


@pytest.fixture(scope="module")
def address_of_all(tmp_path_factory) -> Path:
    return programs(tmp_path_factory.mktemp("address-all"), TARGETS)


@pytest.fixture(scope="module")
def stress(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("thread")
    sources = [HERE / "sanitized/stress.cpp", NATIVE / "pool.cpp"]
    with ThreadPoolExecutor(2) as workers:
        objects = list(workers.map(lambda s: compile_object(s, folder / f"{s.stem}.o", *THREAD), sources))
    return link(objects, folder / "stress", *THREAD)


@pytest.mark.parametrize("target", SOME)
def test_kernels_stay_within_their_memory(address, target):
    run(address / "compare", target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_all_kernels_stay_within_their_memory(address_of_all, target):
    run(address_of_all / "compare", target)


def test_some_cases_of_every_op_stay_within_their_memory(address):
    run(address / "ops", FEW, 0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, FEW))
def test_every_op_stays_within_its_memory(address_of_all, first):
    run(address_of_all / "ops", FEW, first)


def test_the_pool_keeps_its_order_for_seconds(stress):
    run(stress, 1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_the_pool_keeps_its_order_for_minutes(stress, seed):
    run(stress, seed, 60)

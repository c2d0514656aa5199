"""Puts tests/ on the import path: shards and tiny make checkpoints for every room.

No test shares its engines with what the user runs, nor with tests beside it.
"""

import os
import tempfile

import pytest

FIRST = (  # files of few tests that take a minute or more: at the end, one worker would run the last of them alone
    "test_interpreter.py",
    "test_sanitizers.py",
    "test_avx512_simulated.py",
)


def pytest_xdist_auto_num_workers(config):
    """Two more than there are CPUs: those of screens wait half of their time."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):  # xdist would begin with the files of most tests
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture(scope="session", autouse=True)
def own_runtime_folder():
    """Where engines of these tests are offered; in the environment also of their processes."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="localmoe-tests-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        yield
    if before is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = before

"""Correctness tests run twice: in Triton's interpreter (from test_interpreter.py) and, with `-m gpu`, on a GPU.

They ask for the fixture `device`. Triton must know about the interpreter before it is imported, so the
interpreter gets a process of its own.
"""

import os

import pytest
import torch

from localmoe.kernels.gpu.chips import CHIPS, chip_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns otherwise; launches say it themselves

if INTERPRETED:
    import interpreter

    interpreter.repair()


def pytest_itemcollected(item):
    if "device" in getattr(item, "fixturenames", ()) and not INTERPRETED:
        item.add_marker(pytest.mark.gpu)


def pytest_generate_tests(metafunc):
    if {"chip", "device"} <= set(metafunc.fixturenames):
        chips = [CHIPS[86], CHIPS[120]]
        if not INTERPRETED:
            chips = [chip_of(torch.device("cuda"))] if torch.cuda.is_available() else [CHIPS[120]]
        metafunc.parametrize("chip", chips, ids=lambda chip: chip.name)


@pytest.fixture(scope="session")
def device() -> torch.device:
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use")
    return torch.device("cuda")

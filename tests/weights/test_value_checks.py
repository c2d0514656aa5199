import time

import numpy as np
import pytest

from localmoe.weights import checks

END = (1 << 16) + 514  # no multiple of a vector
PLACES = [0, 1, 1 << 15, END - 1]


def test_two_fp8_codes_are_not_numbers():
    refused = [code for code in range(256) if checks.fp8(np.full(3, code, np.uint8)) is not None]
    assert refused == [0x7F, 0xFF]


@pytest.mark.parametrize("place", PLACES)
def test_an_fp8_nan_is_found_wherever_it_lies(place):
    piece = np.full(END, 0x7E, np.uint8)
    assert checks.fp8(piece) is None
    piece[place] = 0xFF
    piece[place + 1 :: 1000] = 0x7F  # later ones do not matter
    assert checks.fp8(piece) == place


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7F81, 0xFFFF])
@pytest.mark.parametrize("place", [place // 2 for place in PLACES])
def test_bf16_is_finite(bits, place):
    piece = np.full(END // 2, 0xFF7F, np.uint16)
    assert checks.bf16(piece.view(np.uint8)) is None
    piece[place] = bits
    assert checks.bf16(piece.view(np.uint8)) == 2 * place


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_fp32_is_finite(value):
    piece = np.full(END // 4, -3e38, np.float32)
    assert checks.fp32(piece.view(np.uint8)) is None
    piece[7000] = value
    assert checks.fp32(piece.view(np.uint8)) == 28_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0])
def test_scales_are_finite_and_positive(value):
    piece = np.array([1e-45, 1.0, 3e38], np.float32)
    assert checks.scales(piece.view(np.uint8)) is None
    piece[1] = value
    assert checks.scales(piece.view(np.uint8)) == 4


def test_nothing_is_fine():
    empty = np.empty(0, np.uint8)
    assert [check(empty) for check in (checks.fp8, checks.bf16, checks.fp32, checks.scales)] == [None] * 4


@pytest.mark.parametrize("check", [checks.fp8, checks.bf16])
def test_checks_keep_up_with_a_disk(check):
    piece = np.zeros(32 << 20, np.uint8)

    def seconds() -> float:
        start = time.perf_counter()
        check(piece)
        return time.perf_counter() - start

    assert piece.nbytes / min(seconds() for _ in range(5)) > 1e9

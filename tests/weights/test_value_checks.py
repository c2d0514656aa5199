"""Weights on their way from a read to where they rest: copied as they are, refused where they are no numbers."""

import time

import numpy as np
import pytest

from localmoe import _native as native

END = (1 << 16) + 514  # no multiple of a vector
PLACES = [0, 1, 1 << 15, END - 1]


LINE = 64
TARGETS = [0, 1, 4, LINE - 4, LINE - 2]  # behind the beginning of a line


def first_bad(values, kind, shift=0):
    """Index of the first byte of the first bad value, after copies between memory of any alignment."""
    source = np.empty(values.nbytes + shift, np.uint8)[shift:]
    source[:] = values.view(np.uint8)
    bad = native.find_bad_value(source, kind)
    for behind in TARGETS:
        room = np.zeros(values.nbytes + 3 * LINE, np.uint8)
        start = -room.ctypes.data % LINE + behind
        target = room[start : start + values.nbytes]
        assert native.copy_values(source, target, kind) == bad
        end = len(source) if bad < 0 else bad
        np.testing.assert_array_equal(target[:end], source[:end])
        assert not room[:start].any()
        assert not room[start + values.nbytes :].any()
    return None if bad < 0 else bad


def test_two_fp8_codes_are_not_numbers():
    refused = [code for code in range(256) if first_bad(np.full(3, code, np.uint8), "fp8") is not None]
    assert refused == [0x7F, 0xFF]


@pytest.mark.parametrize("place", PLACES)
def test_an_fp8_nan_is_found_wherever_it_lies(place):
    piece = np.full(END, 0x7E, np.uint8)
    assert first_bad(piece, "fp8") is None
    piece[place] = 0xFF
    piece[place + 1 :: 1000] = 0x7F  # later ones do not matter
    assert first_bad(piece, "fp8", shift=3) == place


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7F81, 0xFFFF])
@pytest.mark.parametrize("place", [place // 2 for place in PLACES])
def test_bf16_is_finite(bits, place):
    piece = np.full(END // 2, 0xFF7F, np.uint16)
    assert first_bad(piece, "bf16") is None
    piece[place] = bits
    assert first_bad(piece, "bf16", shift=1) == 2 * place


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_fp32_is_finite(value):
    piece = np.full(END // 4, -3e38, np.float32)
    assert first_bad(piece, "f32") is None
    piece[7000] = value
    assert first_bad(piece, "f32", shift=2) == 28_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0])
@pytest.mark.parametrize("place", [1, 100])
def test_scales_are_finite_and_positive(value, place):
    piece = np.resize(np.array([1e-45, 1.0, 3e38], np.float32), 200)
    assert first_bad(piece, "scale") is None
    piece[place] = value
    assert first_bad(piece, "scale", shift=1) == 4 * place


@pytest.mark.parametrize(
    ("kind", "dtype", "bad"),
    [("fp8", "u1", 0x7F), ("bf16", "u2", 0x7F80), ("f32", "u4", 0x7F800000), ("scale", "u4", 0)],
)
def test_a_bad_value_is_found_at_each_place_of_a_line(kind, dtype, bad):
    for place in range(3 * LINE // np.dtype(dtype).itemsize):
        piece = np.full(5 * LINE // np.dtype(dtype).itemsize, 0x3C, dtype)
        piece[place] = bad
        assert first_bad(piece, kind) == place * piece.itemsize


@pytest.mark.parametrize("kind", ["fp8", "bf16", "f32", "scale"])
def test_nothing_is_fine(kind):
    assert first_bad(np.empty(0, np.uint8), kind) is None


@pytest.mark.parametrize(("length", "kind"), [(3, "bf16"), (6, "f32"), (4, "int4")])
def test_what_is_no_whole_number_of_known_values_is_refused(length, kind):
    with pytest.raises(ValueError):
        native.copy_values(np.zeros(length, np.uint8), np.zeros(length, np.uint8), kind)


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_copies_keep_up_with_a_disk(kind):
    piece, target = np.zeros(32 << 20, np.uint8), np.zeros(32 << 20, np.uint8)

    def seconds() -> float:
        start = time.perf_counter()
        native.copy_values(piece, target, kind)
        return time.perf_counter() - start

    assert piece.nbytes / min(seconds() for _ in range(5)) > 1e9

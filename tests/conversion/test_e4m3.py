"""FP8 E4M3 in numpy: every code comes back, every tie goes to even, nothing becomes a NaN code."""

import numpy as np
import pytest

from localmoe.conversion.e4m3 import encode


def decode(codes):
    """By the format's definition."""
    code = codes.astype(int)
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(code & 0x80, -size, size).astype(np.float32)


CODES = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
SIZES = decode(np.arange(127, dtype=np.uint8)).astype(np.float64)


def test_every_code_comes_back():
    assert (encode(decode(CODES)) == CODES).all()
    assert decode(np.array([0, 1, 8, 0x38, 0x7E, 0xB8], np.uint8)).tolist() == [0, 2**-9, 2**-6, 1, 448, -1]


def test_halfway_between_two_codes_the_even_one_is_taken():
    middle = ((SIZES[1:] + SIZES[:-1]) / 2).astype(np.float32)
    low = np.arange(126)
    even = np.where(low % 2 == 0, low, low + 1).astype(np.uint8)
    assert (encode(middle) == even).all()
    assert (encode(-middle) == even | 0x80).all()


@pytest.mark.parametrize("direction", [-np.inf, np.inf])
def test_just_beside_the_middle_the_nearest_is_taken(direction):
    middle = np.nextafter(((SIZES[1:] + SIZES[:-1]) / 2).astype(np.float32), np.float32(direction))
    assert (encode(middle) == np.arange(126) + (direction > 0)).all()


def test_random_numbers_of_all_sizes_go_to_the_nearest():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_000) * 2.0 ** rng.uniform(-14, 9, 20_000)).astype(np.float32)
    values = values[np.abs(values) <= 448]
    nearest = np.abs(np.abs(values.astype(np.float64))[:, None] - SIZES).min(axis=1)
    assert (np.abs(decode(encode(values)) - values.astype(np.float64)) == nearest).all()
    assert (np.signbit(decode(encode(values))) == np.signbit(values)).all()


def test_what_is_too_large_is_the_largest_and_no_nan_is_made():
    large = np.array([448.1, 464, 465, 1e5, 3e38, -1e9], np.float32)
    assert encode(large).tolist() == [0x7E] * 5 + [0xFE]
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1_000_000, np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    codes = encode(values[np.isfinite(values)])
    assert not ((codes & 0x7F) == 0x7F).any()


def test_it_agrees_with_torch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(2).standard_normal(200_000).astype(np.float32) * np.float32(20)
    theirs = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (encode(values) == theirs).all()

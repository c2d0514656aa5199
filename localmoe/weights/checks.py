"""Values that no weight may have, found on a piece of bytes just read, while it is still in the cache.

FP8 E4M3 has one NaN per sign (codes 0x7F and 0xFF) and no infinities; a scale is finite and positive; BF16 and
FP32 values are finite. What is refused are the largest bits of either sign, so two maxima find them: one of the bits
as numbers without a sign, where the negative ones are on top, one of the bits as numbers with a sign.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Check = Callable[[Bytes], int | None]


def fp8(piece: Bytes) -> int | None:
    """Index of the first byte of the first FP8 NaN code."""
    return _largest_bits(piece, np.int8, 0x7F)


def bf16(piece: Bytes) -> int | None:
    """Index of the first byte of the first BF16 value that is not finite."""
    return _largest_bits(piece.view(np.uint16), np.int16, 0x7F80)


def fp32(piece: Bytes) -> int | None:
    """Index of the first byte of the first FP32 value that is not finite."""
    return _largest_bits(piece.view(np.uint32), np.int32, 0x7F800000)


def scales(piece: Bytes) -> int | None:
    """Index of the first byte of the first FP32 scale that is not finite and positive."""
    values = piece.view(np.float32)
    if values.size == 0 or (values.min() > 0 and values.max() < np.inf):  # both are NaN if one value is
        return None
    return 4 * int(np.argmin((values > 0) & (values < np.inf)))


def _largest_bits(bits: NDArray[Any], signed: type[np.signedinteger], limit: int) -> int | None:
    """Index of the first byte of the first of `bits` that reaches `limit`, its sign left aside."""
    sign = np.iinfo(signed).max + 1
    if bits.size == 0 or (bits.max() < sign + limit and bits.view(signed).max() < limit):
        return None
    return bits.itemsize * int(np.argmax((bits & (sign - 1)) >= limit))

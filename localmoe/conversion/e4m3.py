"""FP8 E4M3 (one sign, four exponent, three mantissa bits; no infinity) in numpy: to nearest even, saturating."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

LARGEST = np.float32(448)
_SMALLEST_NORMAL = np.float32(2.0**-6)  # below it numbers are as far apart as there
_EXPONENT = np.uint32(0x7F800000)
_ANCHOR = np.uint32(20 << 23 | 1 << 22)  # times 1.5 * 2**20, of whose last bits three are left of a mantissa
_REBIAS = np.float32(2.0**-120)  # from E4M3's exponents to float32's, subnormal ones included


def nearest(values: Floats) -> Floats:
    """The E4M3 number next to each finite value, ties to even; 448 for what is larger."""
    clipped = np.clip(values, -LARGEST, LARGEST)
    anchor = np.maximum(np.abs(clipped), _SMALLEST_NORMAL).view(np.uint32)
    anchor &= _EXPONENT
    anchor += _ANCHOR
    rounded = clipped + anchor.view(np.float32)
    rounded -= anchor.view(np.float32)
    return np.copysign(rounded, clipped, out=rounded)


def codes_of(numbers: Floats) -> Codes:
    """The codes of E4M3 numbers, as `nearest` gives them: never a NaN's."""
    bits = (numbers * _REBIAS).view(np.uint32)
    codes = (bits >> np.uint32(20)).astype(np.uint8)
    codes &= np.uint8(0x7F)
    codes |= (bits >> np.uint32(24)).astype(np.uint8) & np.uint8(0x80)
    return codes


def encode(values: Floats) -> Codes:
    """The nearest code of each finite value."""
    return codes_of(nearest(values))

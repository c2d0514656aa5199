"""A band of a matrix as codes and scales: each 128 x 128 block has the scale that takes its largest weight to 448."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localmoe.conversion.e4m3 import LARGEST, Codes, Floats, codes_of, nearest
from localmoe.model.config import BLOCK

TILE_COLUMNS = 4 * BLOCK  # looked at at a time: 256 KB as float32, which caches hold
_SMALLEST_SCALE = np.float32(2.0**-126)  # below it floats lose digits


@dataclass(frozen=True, slots=True)
class Band:
    """At most 128 rows of a matrix."""

    codes: Codes  # [rows, columns]
    scales: Floats  # [blocks of columns]; a weight is its code's value times its block's scale
    error: float  # the sum of all weights' squared errors
    power: float  # the sum of their squares


def quantise(band: NDArray[np.uint16]) -> Band:
    """Of BF16 bits, [rows <= 128, columns]; all values finite."""
    rows, columns = band.shape
    assert rows <= BLOCK
    tiles = [_tile(band[:, at : at + TILE_COLUMNS]) for at in range(0, columns, TILE_COLUMNS)]
    return Band(
        np.concatenate([tile.codes for tile in tiles], axis=1),
        np.concatenate([tile.scales for tile in tiles]),
        sum(tile.error for tile in tiles),
        sum(tile.power for tile in tiles),
    )


def _tile(bits: NDArray[np.uint16]) -> Band:
    rows, columns = bits.shape
    weights = _in_blocks(widened(bits))  # [rows, blocks, 128]
    largest: Floats = np.abs(weights).max(axis=(0, 2))
    scales = np.maximum(largest / LARGEST, _SMALLEST_SCALE)
    scales[largest == 0] = 1
    wide = scales[None, :, None]
    numbers = nearest(weights / wide)
    codes = codes_of(numbers).reshape(rows, -1)[:, :columns]
    numbers *= wide
    numbers -= weights
    return Band(codes, scales, _squares(numbers), _squares(weights))


def _in_blocks(weights: Floats) -> Floats:
    """[rows, blocks, 128], the last block filled up with zeros."""
    rows, columns = weights.shape
    if missing := -columns % BLOCK:
        weights = np.pad(weights, ((0, 0), (0, missing)))
    return weights.reshape(rows, -1, BLOCK)


def _squares(values: Floats) -> float:
    flat = values.ravel()
    return float(np.dot(flat, flat))


def widened(bits: NDArray[np.uint16]) -> Floats:
    """BF16 bits as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def is_finite(bits: NDArray[np.uint16]) -> bool:
    """Whether no BF16 value is infinite or none."""
    return not bool(((bits & np.uint16(0x7F80)) == np.uint16(0x7F80)).any())

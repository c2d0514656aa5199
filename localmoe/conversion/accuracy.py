"""How far the converted weights are from the original ones: relative, by layer."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MatrixError:
    """Sums over the weights of one matrix."""

    name: str
    layer: int
    error: float  # of squared errors
    power: float  # of squares

    @property
    def relative(self) -> float:
        """The error's norm, as a part of the weights' own; 0 for a matrix of zeros."""
        return _relative(self.error, self.power)


@dataclass(frozen=True, slots=True)
class LayerError:
    """The matrices of one layer together."""

    layer: int
    num_matrices: int
    relative: float
    worst: MatrixError


def by_layer(matrices: Iterable[MatrixError]) -> tuple[LayerError, ...]:
    """Each layer's, in order."""
    layers: dict[int, list[MatrixError]] = {}
    for matrix in sorted(matrices, key=lambda one: (one.layer, one.name)):
        layers.setdefault(matrix.layer, []).append(matrix)
    return tuple(
        LayerError(layer, len(own), overall(own), max(own, key=lambda one: one.relative))
        for layer, own in layers.items()
    )


def overall(matrices: Iterable[MatrixError]) -> float:
    """Of all of them together."""
    found = list(matrices)
    return _relative(math.fsum(one.error for one in found), math.fsum(one.power for one in found))


def to_json(matrix: MatrixError) -> list[Any]:
    """For the journal."""
    return [matrix.name, matrix.layer, matrix.error, matrix.power]


def from_json(data: list[Any]) -> MatrixError:
    """The same back; ValueError or TypeError for anything else."""
    name, layer, error, power = data
    return MatrixError(str(name), int(layer), float(error), float(power))


def _relative(error: float, power: float) -> float:
    return math.sqrt(error / power) if power > 0 else 0.0

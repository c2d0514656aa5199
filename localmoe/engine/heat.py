"""Which experts the last decode steps chose, layer by layer: counted from what each step says about itself."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from localmoe.events import Heat

WINDOW_S = 4.0
LOOK_EVERY_S = 0.025  # steps between two looks are not counted: those of a large model all are
MOST_CELLS = 32  # of a layer, each a run of experts


class ExpertHeat:
    """Counts of the steps of the last WINDOW_S. `num_dense` layers come before those with routed experts."""

    def __init__(self, num_layers: int, num_dense: int, num_experts: int) -> None:
        self._first_layer = num_dense + 1
        self._counts = np.zeros((num_layers - num_dense, num_experts), np.int64)
        self._steps: deque[tuple[float, NDArray[np.int64]]] = deque()  # when, and the places that it counted
        self._looked_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether a step that ended now is to be counted."""
        return self._counts.size > 0 and now_s - self._looked_s >= LOOK_EVERY_S

    def add(self, chosen: NDArray[np.int32], now_s: float) -> None:
        """A step's experts [moe layers, T, K]; below 0 none."""
        self._looked_s = now_s
        rows = np.arange(len(chosen))[:, None] * self._counts.shape[1]
        flat = chosen.reshape(len(chosen), -1)
        places = (rows + flat)[flat >= 0]
        np.add.at(self._counts.reshape(-1), places, 1)
        self._steps.append((now_s, places))

    def event(self, now_s: float) -> Heat | None:
        """The window that ends at `now_s`; None when no step is in it."""
        while self._steps and self._steps[0][0] <= now_s - WINDOW_S:
            np.subtract.at(self._counts.reshape(-1), self._steps.popleft()[1], 1)
        if not self._steps:
            return None
        num_experts = self._counts.shape[1]
        per_cell = -(-num_experts // MOST_CELLS)
        cells = np.add.reduceat(self._counts, range(0, num_experts, per_cell), axis=1)
        return Heat(self._first_layer, num_experts, len(self._steps), tuple(map(tuple, cells.tolist())))

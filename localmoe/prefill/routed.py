"""The last layer's groups, where only a few tokens need it: those experts that they chose, and no others."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe.prefill.job import Job
from localmoe.prefill.ring import GroupPlan


class RoutedGroups:
    """A pass's groups in order. Whoever comes to the last layer's waits until its router has chosen."""

    def __init__(self, job: Job, groups: Sequence[GroupPlan], layer: int) -> None:
        self._job = job
        self._before = [group for group in groups if group.layer < layer]
        self._layer = layer
        self._last: list[GroupPlan] = []
        self._is_known = threading.Event()

    def __iter__(self) -> Iterator[GroupPlan]:
        yield from self._before
        self._job.wait(self._is_known)
        yield from self._last

    def choose(self, experts: NDArray[np.int32]) -> list[GroupPlan]:
        """The last layer's, a group for each expert that occurs in `experts`."""
        first = len(self._before)
        chosen = enumerate(np.unique(experts).tolist())
        self._last = [GroupPlan(first + n, self._layer, expert, 1, n == 0) for n, expert in chosen]
        self._is_known.set()
        return self._last

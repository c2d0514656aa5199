"""Where groups of experts are copied from. In a slot each lies as in the store.

From memory, a slot gets for each part of the layer's experts the group's experts one after the other at the part's
stride.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.copying import memory_steps
from localmoe.devices.device import Step
from localmoe.weights.store import Experts

Bytes = NDArray[np.uint8]


class ExpertSource(Protocol):
    """The routed experts of all layers that have some, numbered from 0."""

    def experts(self, layer: int) -> Experts:
        """Their number, and where matrices lie in an expert's bytes."""
        ...

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """Each part's bytes of experts [first, first + count), where they are computed in place; None: in a slot."""
        ...

    def blobs(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """Each part's bytes of experts [first, first + count), where they are copied from memory as wholes."""
        ...

    def views(self, layer: int, first: int, count: int, slot: Bytes) -> list[Bytes]:
        """As segments.Group.data, where experts [first, first + count) lie once their copy is through."""
        ...

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """The copy of those of experts [first, first + count) that do not rest into `slot`, which has room for all."""
        ...


class KeptExperts(ExpertSource, Protocol):
    """One that keeps some experts in memory, as it sees which are chosen. Any thread may call."""

    def count(self, layer: int, chosen: NDArray[np.int32]) -> None:
        """Tokens chose these experts, as often as they occur."""
        ...

    def reading(self, layer: int) -> AbstractContextManager[Any]:
        """Meanwhile what rests of the layer stays where it is."""
        ...

    def keep(self, layer: int, expert: int, data: Bytes) -> None:
        """An expert has come from elsewhere: it stays if there is room. Within `reading`, by whoever reads."""
        ...


class _Rows(Protocol):
    @property
    def blob(self) -> Bytes: ...


class InParts(Protocol):
    """Experts, as far as their bytes are concerned."""

    @property
    def parts(self) -> Sequence[_Rows]: ...


def group_bytes(experts: InParts, count: int) -> int:
    """Of a slot that holds `count` of them."""
    return count * sum(part.blob.shape[1] for part in experts.parts)


def group_views(experts: InParts, count: int, slot: Bytes) -> list[Bytes]:
    """Each part's bytes in a slot that holds `count` experts."""
    views, at = [], 0
    for part in experts.parts:
        nbytes = count * part.blob.shape[1]
        views.append(slot[at : at + nbytes])
        at += nbytes
    return views


class MemoryExperts:
    """Copies from the one copy in memory."""

    def __init__(self, layers: Sequence[Experts]) -> None:
        self._layers = layers

    def experts(self, layer: int) -> Experts:
        """As ExpertSource says."""
        return self._layers[layer]

    def resting(self, layer: int, first: int, count: int) -> list[Bytes] | None:
        """None: as for a device that the system's memory is far from."""

    def blobs(self, layer: int, first: int, count: int) -> list[Bytes]:
        """As ExpertSource says."""
        return [part.blob[first : first + count].reshape(-1) for part in self._layers[layer].parts]

    def views(self, layer: int, first: int, count: int, slot: Bytes) -> list[Bytes]:
        """As ExpertSource says."""
        return group_views(self._layers[layer], count, slot)

    def steps(self, layer: int, first: int, count: int, slot: Bytes) -> Sequence[Step]:
        """As ExpertSource says."""
        views, blobs = group_views(self._layers[layer], count, slot), self.blobs(layer, first, count)
        return [step for view, blob in zip(views, blobs, strict=True) for step in memory_steps(view, blob)]

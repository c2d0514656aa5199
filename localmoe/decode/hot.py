"""Routed experts that are chosen often, kept on a device for good: it computes them, and the CPU the others."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Bytes, Device
from localmoe.kernels.ops import Experts
from localmoe.kernels.segments import Group
from localmoe.weights.expert_source import group_bytes, group_views

PATIENCE_S = 1.0  # how long an upload is waited for at a time

Counts = NDArray[np.int64]


def count_choices(chosen: NDArray[np.int32], num_experts: int) -> Counts:
    """[moe layers, E]: how often each expert is among `chosen` [moe layers, T, K]; below 0 is none."""
    counts = np.zeros((len(chosen), num_experts), np.int64)
    for layer, ids in enumerate(chosen):
        counts[layer] = np.bincount(ids[ids >= 0], minlength=num_experts)
    return counts


def hottest(counts: Counts, num: int) -> list[list[int]]:
    """Ids of the `num` experts that were chosen most, by layer, ascending. Of equals the first; none that never was."""
    order = np.argsort(-counts, axis=None, kind="stable")[:num]
    found: list[list[int]] = [[] for _ in range(len(counts))]
    for layer, expert in zip(*np.unravel_index(np.sort(order), counts.shape), strict=True):
        if counts[layer, expert]:
            found[int(layer)].append(int(expert))
    return found


class HotExperts:
    """`ids` of each layer with routed experts, copied to `device` in one allocation. Frozen: they stay to the end.

    Raises OutOfMemoryError when the device has no room, and what a copy failed with.
    """

    def __init__(self, device: Device, layers: Sequence[Experts], ids: Sequence[Sequence[int]]) -> None:
        self._ids = [sorted(found) for found in ids]
        self._num_experts = [experts.num_experts for experts in layers]
        sizes = [group_bytes(experts, len(found)) for experts, found in zip(layers, self._ids, strict=True)]
        self.nbytes = sum(sizes)
        self._memory = device.alloc(self.nbytes)
        ends = np.cumsum(sizes)
        self._data = [
            group_views(experts, len(found), self._memory.view[end - size : end])
            for experts, found, size, end in zip(layers, self._ids, sizes, ends, strict=True)
        ]
        self._groups = [self._group(n) if found else None for n, found in enumerate(self._ids)]
        try:
            self._upload(device, layers)
        except BaseException:
            self.close()
            raise

    @property
    def num_experts(self) -> int:
        """In all layers together."""
        return sum(map(len, self._ids))

    def has(self, layer: int) -> bool:
        """Whether any expert of the layer is here."""
        return bool(self._ids[layer])

    def group(self, layer: int) -> Group:
        """The layer's hot experts, where they lie here."""
        group = self._groups[layer]
        assert group is not None, "the layer has none"
        return group

    def others(self, layer: int) -> NDArray[np.int32]:
        """[E] for Group.places: the layer's other experts, each where it lies among all."""
        places = np.arange(self._num_experts[layer], dtype=np.int32)
        places[self._ids[layer]] = -1
        return places

    def close(self) -> None:
        """Gives the memory back."""
        self._memory.free()

    def _group(self, layer: int) -> Group:
        places = np.full(self._num_experts[layer], -1, np.int32)
        places[self._ids[layer]] = np.arange(len(self._ids[layer]))
        return Group(0, len(self._ids[layer]), self._data[layer], True, places, stays=True)

    def _upload(self, device: Device, layers: Sequence[Experts]) -> None:
        stream, done = device.new_stream("hot"), device.new_event()
        for experts, ids, views in zip(layers, self._ids, self._data, strict=True):
            for part, view in zip(experts.parts, views, strict=True):
                for n, expert in enumerate(ids):
                    stream.copy_async(_expert(view, n, part.blob.shape[1]), part.blob[expert])
        stream.record(done)
        while not done.wait(PATIENCE_S):
            if device.failure:
                raise device.failure


def _expert(view: Bytes, n: int, stride: int) -> Bytes:
    return view[n * stride : (n + 1) * stride]

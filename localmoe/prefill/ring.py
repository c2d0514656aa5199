"""Slots on a device, in a circle, and the groups of experts that pass through them in layer order."""

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localmoe.devices.device import Bytes, Device, Event, Memory
from localmoe.prefill.job import Job
from localmoe.weights.expert_source import ExpertSource, group_bytes


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Experts [first, first + count) of a layer, moved in one transfer; `number` counts the groups of a pass."""

    number: int
    layer: int
    first: int
    count: int
    is_first: bool  # of its layer's on this device


@dataclass
class Slot:
    """Room for one group, and its events: its bytes begin to come, are there, and nobody reads them any more."""

    view: Bytes
    begun: Event
    ready: Event
    done: Event
    group: GroupPlan | None = None
    data: list[Bytes] = field(default_factory=list)  # where the group is computed, as ExpertSource.views has it
    loaded: list[float] = field(default_factory=list)  # times at which its pieces began and ended, if it has some
    loaded_bytes: int = 0


def plan_groups(shares: Sequence[range], group_experts: int) -> list[GroupPlan]:
    """The groups of a pass; `shares` has the experts of each layer that the device loads."""
    groups: list[GroupPlan] = []
    for layer, share in enumerate(shares):
        for first in range(share.start, share.stop, group_experts):
            count = min(group_experts, share.stop - first)
            groups.append(GroupPlan(len(groups), layer, first, count, first == share.start))
    return groups


def slot_bytes(source: ExpertSource, groups: Sequence[GroupPlan]) -> int:
    """Room that every group fits into."""
    return max((group_bytes(source.experts(g.layer), g.count) for g in groups), default=0)


class Ring:
    """`num_slots` slots of `nbytes`, allocated at once; or as many of them as `lent` has room for.

    `lent` is another ring's memory, which that one keeps: only one of them may be used at a time.
    """

    def __init__(self, device: Device, num_slots: int, nbytes: int, lent: Memory | None = None) -> None:
        stride = -(-nbytes // 4096) * 4096
        self.memory = device.alloc(num_slots * stride) if lent is None else lent
        self._is_lent = lent is not None
        view = self.memory.view
        if lent is not None and stride:
            num_slots = min(num_slots, len(view) // stride)
        assert num_slots, "no group fits into what is lent"
        self._slots = [
            Slot(view[n * stride : n * stride + nbytes], device.new_event(), device.new_event(), device.new_event())
            for n in range(num_slots)
        ]
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self.reset()

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def num_free(self) -> int:
        """Slots that no group has."""
        return self._free.qsize()

    def take(self, job: Job, group: GroupPlan) -> Slot:
        """The next free slot, once there is one; StoppedError when the job ends before."""
        slot = job.get(self._free)
        slot.group = group
        slot.loaded = []
        slot.loaded_bytes = 0
        return slot

    def give_back(self, slot: Slot) -> None:
        """Nobody reads it any more."""
        slot.group = None
        slot.data = []
        self._free.put(slot)

    def reset(self) -> None:
        """All slots are free: for when nothing runs."""
        while self.num_free:
            self._free.get()
        for slot in self._slots:
            self.give_back(slot)

    def close(self) -> None:
        """Gives the memory back, unless it was lent."""
        self._slots = []
        if not self._is_lent:
            self.memory.free()


def of_layers(groups: Sequence[GroupPlan], num_layers: int) -> list[list[GroupPlan]]:
    """The groups by layer."""
    found: list[list[GroupPlan]] = [[] for _ in range(num_layers)]
    for group in groups:
        found[group.layer].append(group)
    return found


def balanced(num_experts: Sequence[int], num_devices: int) -> list[list[range]]:
    """Of each device, the experts of each layer that it loads: as many as the others', give or take one in all.

    A layer's experts are alike, so equal numbers are equal bytes; layers take turns in who gets one more.
    """
    shares: list[list[range]] = [[] for _ in range(num_devices)]
    extra = 0  # devices that had one more so far
    for count in num_experts:
        each, rest = divmod(count, num_devices)
        more = {(extra + n) % num_devices for n in range(rest)}
        extra += rest
        for device, share in enumerate(_ranges([each + (d in more) for d in range(num_devices)])):
            shares[device].append(share)
    return shares


def _ranges(sizes: Sequence[int]) -> Iterator[range]:
    start = 0
    for size in sizes:
        yield range(start, start + size)
        start += size

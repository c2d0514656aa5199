"""The loader: groups of experts in layer order into free slots, before anybody knows which tokens go there."""

import time

from localmoe.devices.device import Bytes, Step
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.weights.expert_source import group_views


def load_groups(lane: Lane, job: Job) -> None:
    """Runs ahead across layers as far as the ring allows."""
    for group in lane.groups:
        slot = lane.ring.take(job, group)
        resting = lane.source.resting(group.layer, group.first, group.count)
        slot.data = resting or group_views(lane.source.experts(group.layer), group.count, slot.view)
        steps = () if resting else lane.source.steps(group.layer, group.first, group.count, slot.view)
        lane.loads.copy_async(slot.view, [_Timed(step, slot.loaded) for step in steps])
        lane.loads.record(slot.ready)
        lane.loaded_bytes += sum(step.nbytes for step in steps)
        lane.loading.put(slot)


class _Timed:
    """A step that notes when it began and ended."""

    def __init__(self, step: Step, times: list[float]) -> None:
        self._step = step
        self._times = times
        self.nbytes = step.nbytes
        self.buffer_bytes = step.buffer_bytes

    def fetch(self, buffer: Bytes) -> None:
        self._times.append(time.perf_counter())
        self._step.fetch(buffer)

    def place(self, buffer: Bytes) -> None:
        self._step.place(buffer)
        self._times.append(time.perf_counter())

"""The loader: groups of experts in layer order into free slots, before anybody knows which tokens go there."""

from collections.abc import Sequence

from localmoe.devices.device import Bytes
from localmoe.devices.spans import TimedStep
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.prefill.ring import Slot


def load_groups(lane: Lane, job: Job) -> None:
    """Runs ahead across layers as far as the ring allows."""
    for group in lane.groups:
        slot = lane.ring.take(job, group)
        experts = group.layer, group.first, group.count
        slot.data = lane.source.views(*experts, slot.view)
        blobs = lane.source.blobs(*experts)
        slot.loaded_bytes = _copy_blobs(lane, slot, blobs) if blobs else _copy_steps(lane, slot, experts)
        lane.loads.record(slot.ready)
        lane.loaded_bytes += slot.loaded_bytes
        lane.loading.put(slot)


def _copy_blobs(lane: Lane, slot: Slot, blobs: Sequence[Bytes]) -> int:
    """From memory: one copy for each part."""
    lane.loads.record(slot.begun)
    for view, blob in zip(slot.data, blobs, strict=True):
        lane.loads.copy_async(view, blob)
    return sum(len(blob) for blob in blobs)


def _copy_steps(lane: Lane, slot: Slot, experts: tuple[int, int, int]) -> int:
    """Piece by piece, from files."""
    steps = lane.source.steps(*experts, slot.view)
    lane.loads.copy_async(slot.view, [TimedStep(step, slot.loaded) for step in steps])
    return sum(step.nbytes for step in steps)

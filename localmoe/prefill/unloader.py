"""The unloader: gives a slot back once its group was computed, and moves latents to where decode reads them.

Where that is where they are written, they stay. What a prompt goes on from is brought the other way before.
"""

from collections.abc import Sequence

from localmoe.kernels.ops import Segment
from localmoe.model.cache import Latents
from localmoe.model.mirror import missing, written
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.prefill.ring import Slot


def free_slots(lane: Lane, job: Job) -> None:
    """Until all groups are through. Raises what loading or computing failed with."""
    for _ in lane.groups:
        slot = job.get(lane.computing)
        job.wait(slot.done)
        if slot.loaded_bytes:
            _tell(lane, slot)
        lane.tell()
        lane.ring.give_back(slot)


def _tell(lane: Lane, slot: Slot) -> None:
    """When the group's bytes came: pieces tell it themselves, whole copies by events."""
    times: list[float | None] = [*slot.loaded] or [slot.begun.reached_s, slot.ready.reached_s]
    known = [time_s for time_s in times if time_s is not None]
    assert slot.group is not None and known, "a group that was computed had come"
    lane.add_span("load", slot.group.layer, slot.group.number, min(known), max(known), slot.loaded_bytes)


def unload_latents(lane: Lane, job: Job) -> None:
    """Each layer's new rows to `lane.home`, while later layers are computed."""
    assert lane.home is not None and lane.tokens is not None
    ranges = written(lane.tokens.segments)
    for layer in range(len(lane.written_at)):
        lane.unloads.wait(job.get(lane.written))
        _move(lane, layer, lane.latents, lane.home, ranges)
    lane.unloads.record(lane.moved)
    job.wait(lane.moved)


def bring_latents(lane: Lane, segments: Sequence[Segment], others: Sequence[Latents]) -> None:
    """Issues the copies of what comes before the segments and is not on the device, before all that it computes.

    They come from the first of `others` that has them all.
    """
    ranges = missing(lane.latents, segments)
    if not ranges:
        return
    source = next((other for other in others if not missing(other, segments)), None)
    assert source is not None, "nobody has the latents of an earlier part"
    for layer in range(len(lane.written_at)):
        _move(lane, layer, source, lane.latents, ranges)
    lane.unloads.record(lane.moved)
    lane.computes.wait(lane.moved)


def _move(lane: Lane, layer: int, source: Latents, target: Latents, ranges: Sequence[range]) -> None:
    """Rows of one layer; a span of it."""
    there, here = target.rows(layer), source.rows(layer)
    num_bytes = sum(len(rows) for rows in ranges) * there.shape[1]
    with lane.timed(lane.unloads, "unload", layer, num_bytes=num_bytes):
        for rows in ranges:
            lane.unloads.peer_copy(there[rows.start : rows.stop], here[rows.start : rows.stop])

"""The unloader: gives a slot back once its group was computed.

Latents stay where they are written: on the devices here, that is where decode reads them.
"""

from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane


def free_slots(lane: Lane, job: Job) -> None:
    """Until all groups are through. Raises what loading or computing failed with."""
    for _ in lane.groups:
        slot = job.get(lane.computing)
        job.wait(slot.done)
        group = slot.group
        if slot.loaded and group:
            lane.add_span("load", group.layer, group.number, min(slot.loaded), max(slot.loaded))
        lane.ring.give_back(slot)

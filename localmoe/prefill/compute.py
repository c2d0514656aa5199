"""The model: layer by layer, what is not routed, then each group of experts as it comes. Issued ahead, to a stream."""

import time
from collections.abc import Callable

from localmoe.kernels.segments import Group, SegmentProgram, Stop
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.prefill.ring import GroupPlan, Slot
from localmoe.prefill.spans import Stage


def compute(lane: Lane, job: Job) -> None:
    """All of it on one device. Returns when the logits are there."""
    program, first = lane.program, 0
    for stop in program.ops.stops:
        if stop.kind != "experts":
            continue
        segment(lane, program, first, stop.op, stop.layer)
        compute_groups(lane, job, stop)
        first = stop.op + 1
    segment(lane, program, first, program.num_ops, len(lane.by_layer))
    finish(lane, job)


def pass_through(lane: Lane, job: Job) -> None:
    """Computes nothing: groups are let go as soon as they are there."""
    for _ in lane.groups:
        slot = job.get(lane.loading)
        lane.computes.wait(slot.ready)
        lane.computes.record(slot.done)
        lane.computing.put(slot)
    finish(lane, job)


def compute_groups(lane: Lane, job: Job, stop: Stop) -> None:
    """A layer's groups, each after its bytes are there."""
    for _ in lane.by_layer[stop.layer]:
        slot = job.get(lane.loading)
        assert slot.group is not None and slot.group.layer == stop.layer, "groups come in order"
        lane.computes.wait(slot.ready)
        timed(lane, "experts", stop.layer, slot.group.number, _group_work(lane, stop, slot, slot.group))
        lane.computes.record(slot.done)
        lane.computing.put(slot)


def segment(lane: Lane, program: SegmentProgram, first: int, end: int, layer: int) -> None:
    """Ops of a program that no expert is among."""
    if first < end:
        timed(lane, "attention", layer, -1, lambda: program.run(first, end))


def finish(lane: Lane, job: Job) -> None:
    """Waits for the compute stream."""
    lane.computes.record(lane.reached)
    job.wait(lane.reached)


def timed(lane: Lane, stage: Stage, layer: int, group: int, work: Callable[[], None]) -> None:
    """Issues `work`; its interval becomes a span."""

    def measured() -> None:
        start_s = time.perf_counter()
        work()
        lane.add_span(stage, layer, group, start_s, time.perf_counter())

    lane.computes.launch(measured)


def _group_work(lane: Lane, stop: Stop, slot: Slot, group: GroupPlan) -> Callable[[], None]:
    experts = Group(group.first, group.count, slot.data, overwrites=group.is_first)
    return lambda: lane.mixtures.run_group(stop, experts)

"""The model: layer by layer, what is not routed, then each group of experts as it comes. Issued ahead, to a stream."""

from collections.abc import Callable

from localmoe.devices.spans import Stage
from localmoe.kernels.segments import Group, Stop
from localmoe.model.programs import PieceProgram
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.prefill.ring import GroupPlan, Slot
from localmoe.prefill.routed import RoutedGroups


def compute(lane: Lane, job: Job, num_selected: int) -> None:
    """All of it on one device, for logits of `num_selected` tokens. Returns when they are there."""
    program, first = lane.program, 0
    for stop in program.stops:
        if stop.kind == "latents" and lane.home is not None:
            segment(lane, program, first, stop.op + 1, routed_before(program, stop))
            lane.latents_written(stop.layer)
            first = stop.op + 1
        if stop.kind == "experts":
            segment(lane, program, first, stop.op, stop.layer)
            if isinstance(lane.groups, RoutedGroups) and stop.layer == len(lane.by_layer) - 1:
                finish(lane, job)
                lane.by_layer[stop.layer] = lane.groups.choose(program.chosen(stop.layer)[:num_selected])
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


def segment(lane: Lane, program: PieceProgram, first: int, end: int, layer: int) -> None:
    """Ops of a program that no expert is among."""
    if first < end:
        timed(lane, "attention", layer, -1, lambda: program.run(first, end))


def finish(lane: Lane, job: Job) -> None:
    """Waits for the compute stream."""
    lane.computes.record(lane.reached)
    job.wait(lane.reached)


def timed(lane: Lane, stage: Stage, layer: int, group: int, work: Callable[[], None]) -> None:
    """Issues `work`; its interval becomes a span."""
    with lane.timed(lane.computes, stage, layer, group):
        lane.computes.launch(work)


def routed_before(program: PieceProgram, stop: Stop) -> int:
    """Layers with routed experts that end before `stop`."""
    return sum(s.kind in ("experts", "exchange") and s.op < stop.op for s in program.stops)


def _group_work(lane: Lane, stop: Stop, slot: Slot, group: GroupPlan) -> Callable[[], None]:
    experts = Group(group.first, group.count, slot.data, overwrites=group.is_first)

    def work() -> None:
        lane.mixtures.run_group(stop, experts)
        if lane.computed:
            lane.computed(group, experts.data)

    return work

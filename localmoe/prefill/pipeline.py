"""Stream-loading prefill: experts flow through a ring of slots on each device while it computes.

The weights pass once for each run, whatever the number of tokens. Three actors a device, each on a thread of its own:
the loader fills slots in layer order before routing is known, the model computes, the unloader frees slots. On several
devices each loads only its part of the experts (DSLP).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.devices.device import Device
from localmoe.errors import CancelledError, UsageError
from localmoe.kernels.ops import NOT_COMPUTED, CancelFlag, Segment
from localmoe.kernels.segments import SegmentOps, SegmentProgram, Tokens
from localmoe.model.cache import LatentCache
from localmoe.model.decoder import Model, decode
from localmoe.prefill.cluster import (
    Exchange,
    Exchanged,
    mixtures_program,
    most_own_tokens,
    own_program,
    share_tokens,
)
from localmoe.prefill.compute import compute, pass_through
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.prefill.loader import load_groups
from localmoe.prefill.ring import GroupPlan, Ring, balanced, plan_groups, slot_bytes
from localmoe.prefill.spans import Span, Spans
from localmoe.prefill.unloader import free_slots
from localmoe.weights.expert_source import ExpertSource

LOOK_S = 0.01  # how often the caller's cancel flag is looked at
FEWEST_SLOTS = 1


@dataclass(frozen=True)
class Shape:
    """How experts pass: groups of so many, through so many slots on each device."""

    group_experts: int = 8
    num_slots: int = 4


class Pipeline:
    """ops.Program that streams the routed experts of `model` from `source`; for up to `max_tokens` tokens a run.

    One run at a time. Whatever ends a run (a flag, a bad block, a lost device), the next one finds everything free.
    """

    def __init__(
        self,
        model: Model,
        cache: LatentCache,
        source: ExpertSource,
        devices: Sequence[Device],
        pool: native.Pool,
        max_tokens: int,
        shape: Shape = Shape(),
        *,
        target: str = "",
        worker_nodes: Sequence[int] = (),
    ) -> None:
        if shape.group_experts < 1 or shape.num_slots < FEWEST_SLOTS or not devices:
            raise UsageError("stream-loading prefill needs a device, a slot and an expert in each group.")
        self.max_tokens = max_tokens
        self.exchanged: Exchanged | None = None  # by the last run, on several devices
        self._model = model
        self._cache = cache
        self._source = source
        self._spans = Spans()
        self._new_program = partial(SegmentProgram, pool=pool, target=target, worker_nodes=worker_nodes)
        self._num_tokens = 0
        self._lanes: list[Lane] = []
        shares = balanced([source.experts(n).num_experts for n in range(self._num_moe_layers)], len(devices))
        try:
            for device, share in zip(devices, shares, strict=True):
                self._lanes.append(self._lane(device, plan_groups(share, shape.group_experts), shape, len(devices)))
        except BaseException:
            self.close()
            raise

    @property
    def spans(self) -> tuple[Span, ...]:
        """What the last run did, when: a part of it where it was long."""
        return self._spans.all()

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return min(lane.program.progress for lane in self._lanes)

    @property
    def nbytes(self) -> int:
        """Activations and scratch, beside the rings."""
        programs = {id(p): p for lane in self._lanes for p in (lane.program, lane.mixtures)}
        return sum(program.nbytes for program in programs.values())

    @property
    def loaded_bytes(self) -> tuple[int, ...]:
        """Of experts, by each device in the last run."""
        return tuple(lane.loaded_bytes for lane in self._lanes)

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Slots of each device that no group has: all of them between runs."""
        return tuple(lane.ring.num_free for lane in self._lanes)

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, T, K]: the experts that the last run chose; NOT_COMPUTED where only selected rows were."""
        if not self._num_moe_layers:
            return None
        mixtures, tokens = self._lanes[0].mixtures, self._tokens
        shape = (self._num_moe_layers, tokens.num_rows, self._model.config.top_k)
        chosen = np.full(shape, NOT_COMPUTED, np.int32)
        stops = [stop for stop in mixtures.ops.stops if stop.kind == "experts"]
        for n, stop in enumerate(stops):
            rows = tokens.selected if stop.x and stop.x.selected else np.arange(tokens.num_rows)
            chosen[n, rows] = mixtures.chosen(n)[: len(rows)]
        return chosen

    def forward(
        self,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        urgent: bool = False,
        cancel: CancelFlag | None = None,
        all_logits: bool = False,
        forced_experts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """As ops.Program says; always as bulk work.

        Raises what ended the run too: CheckpointError for a bad block or file, DeviceLostError, CancelledError.
        """
        del urgent
        self._tokens = Tokens.of_run(
            ids,
            segments,
            all_logits=all_logits,
            forced_experts=forced_experts,
            most=self.max_tokens,
            vocab=self._model.config.vocab,
        )
        return self._run(self._tokens, cancel)

    def transfer(self, cancel: CancelFlag | None = None) -> None:
        """One pass of the experts through the rings with nothing computed: the transfer alone, for measuring."""
        job = Job(len(self._lanes))
        self._spans.clear()
        for lane in self._lanes:
            lane.begin()
        self._act(job, lambda n: partial(pass_through, self._lanes[n], job), cancel)

    def close(self) -> None:
        """Gives the slots back. The devices are the caller's to close."""
        for lane in self._lanes:
            lane.reset()
            lane.ring.close()
        self._lanes = []

    @property
    def _num_moe_layers(self) -> int:
        return self._model.config.num_moe_layers

    def _lane(self, device: Device, groups: list[GroupPlan], shape: Shape, num_devices: int) -> Lane:
        num_slots = min(shape.num_slots, max(1, len(groups)))
        ring = Ring(device, num_slots, slot_bytes(self._source, groups))
        if num_devices == 1:
            ops = SegmentOps()
            program = mixtures = self._new_program(ops, decode(ops, self._model, self._cache), self.max_tokens)
        else:
            own, ops = SegmentOps(), SegmentOps()
            most = most_own_tokens(self.max_tokens, num_devices)
            program = self._new_program(own, own_program(own, self._model, self._cache), most)
            mixtures_program(ops, self._model)
            mixtures = self._new_program(ops, None, self.max_tokens)
        return Lane(device, self._source, ring, groups, program, mixtures, self._spans)

    def _run(self, tokens: Tokens, cancel: CancelFlag | None) -> NDArray[np.float32]:
        job = Job(len(self._lanes))
        self._spans.clear()
        shares = share_tokens(tokens, len(self._lanes)) if len(self._lanes) > 1 else []
        for n, lane in enumerate(self._lanes):
            lane.begin()
            lane.mixtures.begin(tokens, job.flag)
            if shares:
                lane.program.begin(shares[n].tokens, job.flag)
        if not shares:
            self._act(job, lambda n: partial(compute, self._lanes[n], job), cancel)
            return self._lanes[0].program.logits
        exchange = Exchange(self._lanes, shares, tokens)
        self._act(job, lambda n: partial(exchange.compute, n, job), cancel)
        latent_bytes = self._cache.width * self._cache.num_layers * self._cache.element_bytes
        self.exchanged = exchange.exchanged(self._model.config.hidden, latent_bytes)
        logits = np.empty((len(tokens.selected), self._model.config.vocab), np.float32)
        for lane, share in zip(self._lanes, shares, strict=True):
            for rows in share.selected:
                logits[rows.whole : rows.whole + rows.count] = lane.program.logits[rows.own : rows.own + rows.count]
        return logits

    def _act(self, job: Job, model: Callable[[int], Callable[[], None]], cancel: CancelFlag | None) -> None:
        """Lets the actors work until all are done; raises what ended them before. `model` has each device's."""
        actors: list[tuple[str, Callable[[], None]]] = []
        for n, lane in enumerate(self._lanes):
            works: dict[str, Callable[[], None]] = {
                "loader": partial(load_groups, lane, job),
                "model": model(n),
                "unloader": partial(free_slots, lane, job),
            }
            actors += [(f"{name}-{lane.device.name}", work) for name, work in works.items()]
        job.start(actors)
        try:
            self._watch(job, cancel)
        except BaseException as error:
            job.fail(error)
            raise
        finally:
            job.over.wait()
            if job.error:
                for lane in self._lanes:
                    lane.reset()
        if job.error:
            raise job.error

    def _watch(self, job: Job, cancel: CancelFlag | None) -> None:
        while not job.over.wait(LOOK_S):
            if cancel is not None and cancel.is_set():
                job.fail(CancelledError("The run was cancelled."))
            for lane in self._lanes:
                if lane.device.failure:
                    job.fail(lane.device.failure)


def overlap(spans: Sequence[Span], layer: int) -> int:
    """Groups of layers behind `layer` whose load had begun before `layer` was computed to its end."""
    ends_s = max((s.end_s for s in spans if s.layer == layer and s.stage == "experts"), default=float("-inf"))
    return sum(s.stage == "load" and s.layer > layer and s.start_s < ends_s for s in spans)

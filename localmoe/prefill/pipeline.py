"""Stream-loading prefill: experts flow through a ring of slots on each device while it computes.

The weights pass once for each run, whatever the number of tokens. Three actors a device, each on a thread of its own:
the loader fills slots in layer order before routing is known, the model computes, the unloader frees slots. On several
devices each loads only its part of the experts (DSLP).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Bytes, Device, Memory
from localmoe.devices.spans import Span, Spans
from localmoe.errors import CancelledError, UsageError
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.kernels.segments import Tokens
from localmoe.model.cache import LatentCache, Latents
from localmoe.model.config import ModelConfig
from localmoe.model.mirror import complete, hold
from localmoe.model.programs import Programs, chosen_experts
from localmoe.prefill.cluster import (
    Exchange,
    Exchanged,
    Share,
    most_own_tokens,
    share_tokens,
)
from localmoe.prefill.compute import compute, pass_through
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane
from localmoe.prefill.loader import load_groups
from localmoe.prefill.ring import GroupPlan, Ring, balanced, plan_groups, slot_bytes
from localmoe.prefill.routed import RoutedGroups
from localmoe.prefill.unloader import bring_latents, free_slots, unload_latents
from localmoe.weights.expert_source import ExpertSource

LOOK_S = 0.01  # how often the caller's cancel flag is looked at
FEWEST_SLOTS = 1
FEW_CHOICES = 2  # times the last layer's choices: where that is less than its experts, they are waited for

OnGroup = Callable[[GroupPlan, Sequence[Bytes], NDArray[np.int32]], None]


@dataclass(frozen=True)
class Shape:
    """How experts pass: groups of so many, through so many slots on each device."""

    group_experts: int = 8
    num_slots: int = 4


class Pipeline:
    """ops.Program that streams the routed experts from `source`; for up to `max_tokens` tokens a run.

    `programs` makes what each device computes with. `home` is where latents are wanted that programs write elsewhere:
    they are moved there during the run, and brought from there where a session goes on. `on_group` is told of each
    group once it is computed, before its slot is used again: where it lies, and which experts tokens chose in its
    layer. `lent` is ring memory of the one device, of another pipeline: only one of the two may run at a time.

    One run at a time. Whatever ends a run (a flag, a bad block, a lost device), the next one finds everything free.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: LatentCache,
        source: ExpertSource,
        devices: Sequence[Device],
        programs: Sequence[Programs],
        max_tokens: int,
        shape: Shape = Shape(),
        *,
        recorded: Spans | None = None,
        home: Latents | None = None,
        on_group: OnGroup | None = None,
        lent: Memory | None = None,
    ) -> None:
        assert lent is None or len(devices) == 1, "memory is lent to one device"
        if shape.group_experts < 1 or shape.num_slots < FEWEST_SLOTS or not devices:
            raise UsageError("stream-loading prefill needs a device, a slot and an expert in each group.")
        self.max_tokens = max_tokens
        self.exchanged: Exchanged | None = None  # by the last run, on several devices
        self._config = config
        self._cache = cache
        self._source = source
        self._home = home
        self._lent = lent
        self.recorded = Spans() if recorded is None else recorded  # what all runs did, when
        self._on_group = on_group
        self._last_pass: list[Iterable[GroupPlan]] = []  # each device's groups
        self._began_s = 0.0  # the run that runs, or ran last
        self._num_tokens = 0
        self._lanes: list[Lane] = []
        self._shares = balanced([source.experts(n).num_experts for n in range(self._num_moe_layers)], len(devices))
        try:
            for device, own, share in zip(devices, programs, self._shares, strict=True):
                self._lanes.append(self._lane(device, own, plan_groups(share, shape.group_experts), shape))
        except BaseException:
            self.close()
            raise

    @property
    def spans(self) -> tuple[Span, ...]:
        """What the last run did, when: a part of it where it was long."""
        return tuple(span for span in self.recorded.all() if span.start_s >= self._began_s)

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
    def ring_memory(self) -> tuple[Memory, ...]:
        """Of each device's slots: what may be lent to another pipeline, which is to be closed before this one."""
        return tuple(lane.ring.memory for lane in self._lanes)

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Slots of each device that no group has: all of them between runs."""
        return tuple(lane.ring.num_free for lane in self._lanes)

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, T, K]: the experts that the last run chose; NOT_COMPUTED where only selected rows were."""
        return chosen_experts(self._lanes[0].mixtures, self._tokens, self._config.top_k)

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
            vocab=self._config.vocab,
        )
        return self._run(self._tokens, cancel)

    def transfer(self, cancel: CancelFlag | None = None) -> None:
        """The last run's pass through the rings with nothing computed: the transfer alone, for measuring."""
        job = Job(len(self._lanes))
        self._began_s = time.perf_counter()
        for lane in self._lanes:
            lane.begin(lane.all_groups)
        for lane, groups in zip(self._lanes, self._last_pass, strict=False):
            lane.begin(list(groups))
        self._act(job, lambda n: partial(pass_through, self._lanes[n], job), cancel)

    def close(self) -> None:
        """Gives the slots back. The devices are the caller's to close."""
        for lane in self._lanes:
            lane.reset()
            lane.ring.close()
        self._lanes = []

    @property
    def _num_moe_layers(self) -> int:
        return self._config.num_moe_layers

    def _lane(self, device: Device, programs: Programs, groups: list[GroupPlan], shape: Shape) -> Lane:
        num_slots = min(shape.num_slots, max(1, len(groups)))
        ring = Ring(device, num_slots, slot_bytes(self._source, groups), self._lent)
        if len(self._shares) == 1:
            program = mixtures = programs.whole(self.max_tokens)
        else:
            program = programs.own(most_own_tokens(self.max_tokens, len(self._shares)))
            mixtures = programs.mixtures(self.max_tokens)
        home = None if self._home is programs.latents else self._home
        lane = Lane(device, self._source, ring, groups, program, mixtures, self.recorded, programs.latents, home)
        if self._on_group:
            lane.computed = partial(self._computed, lane)
        return lane

    def _run(self, tokens: Tokens, cancel: CancelFlag | None) -> NDArray[np.float32]:
        job = Job(len(self._lanes))
        self._began_s = time.perf_counter()
        shares = share_tokens(tokens, len(self._lanes)) if len(self._lanes) > 1 else []
        for lane in self._lanes:
            lane.begin(self._groups(lane, tokens, job))
            bring_latents(lane, tokens.segments, self._elsewhere(lane))
        for n, lane in enumerate(self._lanes):
            lane.tokens = shares[n].tokens if shares else tokens
            lane.mixtures.begin(tokens, job.flag)
            if shares:
                lane.program.begin(lane.tokens, job.flag)
        self._last_pass = [lane.groups for lane in self._lanes]
        if not shares:
            self._act(job, lambda n: partial(compute, self._lanes[n], job, len(tokens.selected)), cancel)
            return self._lanes[0].program.logits
        exchange = Exchange(self._lanes, shares, tokens)
        self._act(job, lambda n: partial(exchange.compute, n, job), cancel)
        self.exchanged = exchange.exchanged(self._latent_bytes(self._lanes[0]))
        return self._gathered_logits(tokens, shares)

    def _latent_bytes(self, lane: Lane) -> int:
        """Of one token in all layers."""
        return sum(int(lane.latents.rows(n).shape[1]) for n in range(self._config.num_layers))

    def _elsewhere(self, lane: Lane) -> list[Latents]:
        """Where latents may be that `lane` has not."""
        devices = [other.latents for other in self._lanes if other.latents is not lane.latents]
        return devices if self._home is None else [self._home, *devices]

    def _gathered_logits(self, tokens: Tokens, shares: Sequence[Share]) -> NDArray[np.float32]:
        logits = np.empty((len(tokens.selected), self._config.vocab), np.float32)
        for lane, share in zip(self._lanes, shares, strict=True):
            for rows in share.selected:
                logits[rows.whole : rows.whole + rows.count] = lane.program.logits[rows.own : rows.own + rows.count]
        return logits

    def _groups(self, lane: Lane, tokens: Tokens, job: Job) -> Iterable[GroupPlan]:
        """All, but where few tokens need the last layer: there those that they choose."""
        stops = [stop for stop in lane.mixtures.stops if stop.kind == "experts"]
        if len(self._lanes) > 1 or not stops or not (stops[-1].x and stops[-1].x.selected):
            return lane.all_groups
        num_experts = self._source.experts(len(stops) - 1).num_experts
        if FEW_CHOICES * len(tokens.selected) * self._config.top_k > num_experts:
            return lane.all_groups
        return RoutedGroups(job, lane.all_groups, len(stops) - 1)

    def _computed(self, lane: Lane, group: GroupPlan, data: Sequence[Bytes]) -> None:
        assert self._on_group is not None
        stop = next(s for s in lane.mixtures.stops if s.kind == "experts" and s.layer == group.layer)
        num_rows = len(self._tokens.selected) if stop.x and stop.x.selected else self._tokens.num_rows
        self._on_group(group, data, lane.mixtures.chosen(group.layer)[:num_rows])

    def _act(self, job: Job, model: Callable[[int], Callable[[], None]], cancel: CancelFlag | None) -> None:
        """Lets the actors work until all are done; raises what ended them before. `model` has each device's."""
        actors: list[tuple[str, Callable[[], None]]] = []
        for n, lane in enumerate(self._lanes):
            works: dict[str, Callable[[], None]] = {
                "loader": partial(load_groups, lane, job),
                "model": model(n),
                "unloader": partial(free_slots, lane, job),
            }
            if lane.home is not None and lane.tokens is not None:
                works["latents"] = partial(unload_latents, lane, job)
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
        for lane in self._lanes:
            lane.tell()
            if lane.tokens is not None:
                complete(lane.latents, self._tokens.segments)
                if lane.home is not None:
                    hold(lane.home, self._tokens.segments)

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

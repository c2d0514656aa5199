"""Steps of a model whose experts do not all rest in memory: the chosen ones that are missing are read when needed.

While they come, those that rest in memory are computed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Bytes, Device, Event
from localmoe.devices.spans import Span, Spans, Stage, TimedStep
from localmoe.errors import CancelledError
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.kernels.segments import Group, Stop, Tokens
from localmoe.model.config import ModelConfig
from localmoe.model.programs import Programs, chosen_experts
from localmoe.weights.expert_source import KeptExperts, group_bytes

LOOK_S = 0.02  # how often the cancel flag is looked at while a read is waited for


@dataclass(frozen=True, slots=True)
class _Coming:
    """An expert on its way into a slot, and when its pieces began and ended."""

    expert: int
    view: Bytes
    ready: Event
    times: list[float]
    num_bytes: int


class OnDemand:
    """ops.Program for a few tokens: of each layer only the experts that they chose are read."""

    def __init__(
        self,
        config: ModelConfig,
        programs: Programs,
        source: KeptExperts,
        device: Device,
        max_tokens: int,
        num_slots: int,
        recorded: Spans | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.read_bytes = 0  # of experts, by the last run
        self.recorded = Spans() if recorded is None else recorded  # what all runs did, when
        self._top_k = config.top_k
        self._tokens: Tokens | None = None  # of the last run
        self._vocab = config.vocab
        self._source = source
        self._device = device
        self._program = programs.whole(max_tokens)
        self._stops = [stop for stop in self._program.stops if stop.kind == "experts"]
        nbytes = max((group_bytes(source.experts(n), 1) for n in range(len(self._stops))), default=0)
        self._memory = device.alloc(num_slots * nbytes)
        views = [self._memory.view[n * nbytes : (n + 1) * nbytes] for n in range(num_slots)]
        self._slots = [(view, device.new_event()) for view in views]
        self._free = deque(self._slots)
        self._loads = device.new_stream("on-demand")

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return self._program.progress

    @property
    def nbytes(self) -> int:
        """Activations and scratch, beside the slots."""
        return self._program.nbytes

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, T, K]: the experts that the last run chose; NOT_COMPUTED where only selected rows were."""
        assert self._tokens is not None, "nothing was run"
        return chosen_experts(self._program, self._tokens, self._top_k)

    @property
    def free_slots(self) -> int:
        """Slots that no expert has: all of them between runs."""
        return len(self._free)

    def forward(
        self,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        urgent: bool = True,
        cancel: CancelFlag | None = None,
        all_logits: bool = False,
        forced_experts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """As ops.Program says. Raises what a read failed with too; the next run finds everything free."""
        self._tokens = tokens = Tokens.of_run(
            ids,
            segments,
            all_logits=all_logits,
            forced_experts=forced_experts,
            most=self.max_tokens,
            vocab=self._vocab,
        )
        self.read_bytes, first = 0, 0
        self._program.begin(tokens, cancel, urgent=urgent)
        try:
            for stop in self._stops:
                self._compute("attention", stop.layer, partial(self._program.run, first, stop.op))
                assert stop.x is not None
                self._mix(stop, len(tokens.selected) if stop.x.selected else len(ids), cancel)
                first = stop.op + 1
            rest = partial(self._program.run, first, self._program.num_ops)
            self._compute("attention", len(self._stops), rest)
        except BaseException:
            self._loads.reset()
            self._free = deque(self._slots)
            raise
        return self._program.logits

    def close(self) -> None:
        """Gives the slots back. The device is the caller's to close."""
        self._loads.reset()
        self._memory.free()

    def _mix(self, stop: Stop, num_rows: int, cancel: CancelFlag | None) -> None:
        overwrites = True
        chosen = self._program.chosen(stop.layer)[:num_rows]
        self._source.count(stop.layer, chosen)
        with self._source.reading(stop.layer):
            for expert, data in self._experts(stop.layer, np.unique(chosen).tolist(), cancel):
                group = Group(expert, 1, data, overwrites)
                self._compute("experts", stop.layer, partial(self._program.run_group, stop, group))
                overwrites = False

    def _experts(
        self, layer: int, chosen: list[int], cancel: CancelFlag | None
    ) -> Iterator[tuple[int, Sequence[Bytes]]]:
        """Each of them with its bytes, those in memory first."""
        resting = {expert: self._source.resting(layer, expert, 1) for expert in chosen}
        missing = deque(expert for expert, data in resting.items() if data is None)
        coming: deque[_Coming] = deque()
        self._load(layer, missing, coming)
        for expert, data in resting.items():
            if data is not None:
                yield expert, data
        while coming:
            load = coming.popleft()
            self._wait(load.ready, cancel)
            self._add_span("load", layer, min(load.times), max(load.times), load.num_bytes)
            data = self._source.views(layer, load.expert, 1, load.view)
            yield load.expert, data
            self._source.keep(layer, load.expert, data[0])
            self._free.append((load.view, load.ready))
            self._load(layer, missing, coming)

    def _load(self, layer: int, missing: "deque[int]", coming: "deque[_Coming]") -> None:
        """As many as there are slots for."""
        while missing and self._free:
            expert = missing.popleft()
            view, ready = self._free.popleft()
            times: list[float] = []
            steps = [TimedStep(step, times) for step in self._source.steps(layer, expert, 1, view)]
            self._loads.copy_async(view, steps)
            self._loads.record(ready)
            coming.append(_Coming(expert, view, ready, times, sum(step.nbytes for step in steps)))
            self.read_bytes += coming[-1].num_bytes

    def _compute(self, stage: Stage, layer: int, work: Callable[[], None]) -> None:
        start_s = perf_counter()
        work()
        self._add_span(stage, layer, start_s, perf_counter())

    def _add_span(self, stage: Stage, layer: int, start_s: float, end_s: float, num_bytes: int = 0) -> None:
        self.recorded.add(Span(self._device.name, stage, layer, -1, start_s, end_s, num_bytes))

    def _wait(self, ready: Event, cancel: CancelFlag | None) -> None:
        while not ready.wait(LOOK_S):
            if cancel is not None and cancel.is_set():
                raise CancelledError("The run was cancelled.")
            if self._device.failure:
                raise self._device.failure

"""Steps of a model whose experts do not all rest in memory: the chosen ones that are missing are read when needed.

While they come, those that rest in memory are computed.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.devices.device import Bytes, Device, Event
from localmoe.errors import CancelledError
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.kernels.segments import Group, SegmentOps, SegmentProgram, Stop, Tokens
from localmoe.model.cache import LatentCache
from localmoe.model.decoder import Model, decode
from localmoe.weights.expert_source import ExpertSource, group_bytes, group_views

LOOK_S = 0.02  # how often the cancel flag is looked at while a read is waited for


class OnDemand:
    """ops.Program for a few tokens: of each layer only the experts that they chose are read."""

    def __init__(
        self,
        model: Model,
        cache: LatentCache,
        source: ExpertSource,
        device: Device,
        pool: native.Pool,
        max_tokens: int,
        num_slots: int,
        *,
        target: str = "",
        worker_nodes: Sequence[int] = (),
    ) -> None:
        self.max_tokens = max_tokens
        self.read_bytes = 0  # of experts, by the last run
        self._vocab = model.config.vocab
        self._source = source
        self._device = device
        ops = SegmentOps()
        self._program = SegmentProgram(ops, decode(ops, model, cache), max_tokens, pool, target, worker_nodes)
        self._stops = [stop for stop in ops.stops if stop.kind == "experts"]
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
        tokens = Tokens.of_run(
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
                self._program.run(first, stop.op)
                assert stop.x is not None
                self._mix(stop, len(tokens.selected) if stop.x.selected else len(ids), cancel)
                first = stop.op + 1
            self._program.run(first, self._program.num_ops)
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
        chosen = np.unique(self._program.chosen(stop.layer)[:num_rows])
        for expert, data in self._experts(stop.layer, [int(e) for e in chosen], cancel):
            self._program.run_group(stop, Group(expert, 1, data, overwrites))
            overwrites = False

    def _experts(
        self, layer: int, chosen: list[int], cancel: CancelFlag | None
    ) -> Iterator[tuple[int, Sequence[Bytes]]]:
        """Each of them with its bytes, those in memory first."""
        resting = {expert: self._source.resting(layer, expert, 1) for expert in chosen}
        missing = deque(expert for expert, data in resting.items() if data is None)
        coming: deque[tuple[int, Bytes, Event]] = deque()
        self._load(layer, missing, coming)
        for expert, data in resting.items():
            if data is not None:
                yield expert, data
        while coming:
            expert, view, ready = coming.popleft()
            self._wait(ready, cancel)
            yield expert, group_views(self._source.experts(layer), 1, view)
            self._free.append((view, ready))
            self._load(layer, missing, coming)

    def _load(self, layer: int, missing: "deque[int]", coming: "deque[tuple[int, Bytes, Event]]") -> None:
        """As many as there are slots for."""
        while missing and self._free:
            expert = missing.popleft()
            view, ready = self._free.popleft()
            steps = self._source.steps(layer, expert, 1, view)
            self._loads.copy_async(view, steps)
            self._loads.record(ready)
            self.read_bytes += sum(step.nbytes for step in steps)
            coming.append((expert, view, ready))

    def _wait(self, ready: Event, cancel: CancelFlag | None) -> None:
        while not ready.wait(LOOK_S):
            if cancel is not None and cancel.is_set():
                raise CancelledError("The run was cancelled.")
            if self._device.failure:
                raise self._device.failure

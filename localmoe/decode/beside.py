"""Decode beside a device: attention, dense layers and shared experts there, routed experts on the CPU, in place.

Dense weights are small enough for a GPU's memory and every token needs them; of the routed experts a token needs few,
and the CPU reads those faster than they could be moved. Experts that fit in spare memory of the device may be hot:
they are computed there. A batch may go as two that alternate, where measured times say that it pays.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.alternation import LayerTimes
from localmoe.decode.batch import Batch
from localmoe.decode.hot import HotExperts
from localmoe.devices.device import Device, Urgency
from localmoe.devices.spans import Spans
from localmoe.devices.turns import Turns
from localmoe.errors import CancelledError
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.kernels.segments import Tokens
from localmoe.model.config import ModelConfig
from localmoe.model.network import new_flag
from localmoe.model.programs import HostPrograms, Programs

LOOK_S = 0.01  # how often the caller's cancel flag is looked at


class Alternation(Protocol):
    """Whether a batch goes as two; alternation.Measured is one."""

    def add(self, num_tokens: int, times: LayerTimes) -> None:
        """What a layer of a step as one batch took."""
        ...

    def pays(self, num_tokens: int) -> bool: ...


class Beside:
    """ops.Program on `device` and the CPU together; for up to `max_tokens` tokens a run.

    `programs` makes what the device computes with, `host` what the CPU does: its experts rest in memory. `hot` are
    experts that lie on the device; the caller closes them. `alternation` None: never, which saves a second batch's
    activations. `recorded` gets spans of all runs. `turns`: with prompts that the device computes meanwhile.
    `urgency` says what goes before what there, and on the CPU which prompts do.

    One run at a time. Whatever ends a run (a flag, a lost device), the next one finds everything free.
    Raises OutOfMemoryError where the device, or memory that can be page-locked, does not suffice.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: Device,
        programs: Programs,
        host: HostPrograms,
        max_tokens: int,
        *,
        hot: HotExperts | None = None,
        alternation: Alternation | None = None,
        recorded: Spans | None = None,
        turns: Turns | None = None,
        urgency: Urgency = "urgent",
    ) -> None:
        self.max_tokens = max_tokens
        self.recorded = Spans() if recorded is None else recorded
        self._config = config
        self._device = device
        self._alternation = alternation
        self._turns = turns
        self._stream = device.new_stream("compute", urgency=urgency)
        self._done = device.new_event()
        self._batches = [
            Batch(device, self._stream, programs, host, max_tokens, hot, self.recorded, turns, early=urgency == "early")
            for _ in range(1 if alternation is None else 2)
        ]
        self._running = self._batches[:1]  # in the last run
        self._cpu = ThreadPoolExecutor(len(self._batches), thread_name_prefix="localmoe-beside")

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return min(batch.progress for batch in self._running)

    @property
    def nbytes(self) -> int:
        """Activations and scratch, on the device and in the system's memory."""
        return sum(batch.nbytes for batch in self._batches)

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, T, K]: the experts that the last run chose; NOT_COMPUTED where only selected rows were."""
        found = [batch.last_experts(self._config.top_k) for batch in self._running]
        told = [chosen for chosen in found if chosen is not None]
        return np.concatenate(told, axis=1) if told else None

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
        """As ops.Program says. Raises what ended the run too: DeviceLostError, what an op failed with."""
        cuts = self._cuts(segments)
        parts = [
            Tokens.of_run(
                ids[of_ids],
                segments[of_segments],
                all_logits=all_logits,
                forced_experts=None if forced_experts is None else forced_experts[:, of_ids],
                most=self.max_tokens,
                vocab=self._config.vocab,
            )
            for of_ids, of_segments in cuts
        ]
        self._running = self._batches[: len(parts)]
        flag = new_flag()
        for batch, tokens in zip(self._running, parts, strict=True):
            batch.begin(tokens, flag, urgent=urgent)
        self._run(flag, cancel)
        for batch in self._running:
            batch.finish()
        self._learn()
        return np.concatenate([batch.logits for batch in self._running])

    def close(self) -> None:
        """Lets its threads go. The device is the caller's to close."""
        self._stream.reset()
        self._cpu.shutdown()

    def _cuts(self, segments: Sequence[Segment]) -> list[tuple[slice, slice]]:
        """The tokens and segments of each batch: of all, or of two with about as many tokens."""
        ends = np.cumsum([0, *(s.count for s in segments)])
        total = int(ends[-1])
        if self._alternation is None or len(segments) < 2 or not self._alternation.pays(total):
            return [(slice(0, total), slice(0, len(segments)))]
        cut = 1 + int(np.abs(2 * ends[1:-1] - total).argmin())
        middle = int(ends[cut])
        return [(slice(0, middle), slice(0, cut)), (slice(middle, total), slice(cut, len(segments)))]

    def _run(self, flag: CancelFlag, cancel: CancelFlag | None) -> None:
        """Issues all of it while the CPU takes its turns. Raises what ended it before, once nothing runs any more."""
        turns = [self._cpu.submit(batch.compute) for batch in self._running if batch.num_layers]
        try:
            self._issue()
            self._watch(turns, cancel)
        except BaseException:
            flag.set()
            for turn in turns:
                turn.exception()
            self._stream.reset()
            if self._turns:
                self._turns.settle()
            raise

    def _issue(self) -> None:
        batches = self._running
        for batch in batches:
            batch.start()
        for n in range(batches[0].num_layers):
            for batch in batches:
                if n:
                    batch.collect(n - 1)
                batch.attend(n)
        for batch in batches:
            if batch.num_layers:
                batch.collect(batch.num_layers - 1)
            batch.end()
        self._stream.record(self._done)

    def _watch(self, turns: Sequence[Future[None]], cancel: CancelFlag | None) -> None:
        """Until all is through."""
        while not self._done.wait(LOOK_S):
            if cancel is not None and cancel.is_set():
                raise CancelledError("The run was cancelled.")
            if self._device.failure:
                raise self._device.failure
            for turn in turns:
                if turn.done():
                    turn.result()
        for turn in turns:
            turn.result()

    def _learn(self) -> None:
        """From a step as one batch."""
        times = self._running[0].times()
        if self._alternation is not None and len(self._running) == 1 and times is not None:
            self._alternation.add(self._running[0].num_rows, times)

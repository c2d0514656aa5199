"""How prompts are read with GPUs: each length its way, and long ones by all GPUs or, beside answers, by one alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.beside import Beside
from localmoe.devices.spans import Spans
from localmoe.engine.activity import Activity
from localmoe.engine.gpu_steps import Seen
from localmoe.kernels.ops import CancelFlag, Segment
from localmoe.prefill.mixed import Mixed
from localmoe.prefill.pipeline import Pipeline


@dataclass(frozen=True)
class Streams:
    """What streams the experts of prompts from `from_tokens` on: `together` all GPUs do, `alone` the last of them.

    `alone` is for as many tokens as it takes, while `activity` goes on; None: never. Only one of both runs at a time.
    """

    from_tokens: int
    together: Pipeline
    alone: Pipeline | None
    activity: Activity

    def choose(self, num_tokens: int) -> Pipeline:
        """For the run that begins now. One that has begun stays where it is."""
        if self.alone and num_tokens <= self.alone.max_tokens and self.activity.goes_on():
            return self.alone
        return self.together


class GpuProgram:
    """ops.Program: prompts from streams.from_tokens on through its pipelines (None: none is), medium ones shared by the
    first GPU and the CPU, or cut in tiles, short ones, of up to beside.max_tokens, with all experts on the CPU. Where
    `mixed` is None short ones are read in pieces.
    """

    def __init__(
        self,
        max_tokens: int,
        beside: Beside,
        mixed: Mixed | None,
        streams: Streams | None,
        recorded: Spans,
        seen: Seen,
    ) -> None:
        self.max_tokens = max_tokens
        self.recorded = recorded
        self.streamed_from = streams.from_tokens if streams else max_tokens + 1
        self._beside, self._mixed, self._streams = beside, mixed, streams
        self._seen = seen
        self._running: Beside | Mixed | Pipeline = beside
        self._pieces = 0, 1  # of a run that is read in pieces: which one runs, of how many

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        done, count = self._pieces
        return (done + self._running.progress) / count

    @property
    def gives_way(self) -> bool:
        """Whether the current run waits while a short prompt is read: one that streams needs no worker of the CPU."""
        return not isinstance(self._running, Pipeline)

    @property
    def nbytes(self) -> int:
        """Activations and scratch at all places, beside the rings."""
        streamed = (self._streams.together, self._streams.alone) if self._streams else ()
        return sum(program.nbytes for program in (self._beside, self._mixed, *streamed) if program)

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """As Pipeline's; of a run in pieces, the last one's."""
        return self._running.last_experts

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
        """As ops.Program says; raises what a device failed with too."""
        self._running = program = self._for(len(ids))

        def run(part: slice, of: Sequence[Segment]) -> NDArray[np.float32]:
            forced = None if forced_experts is None else forced_experts[:, part]
            found = program.forward(
                ids[part], of, urgent=urgent, cancel=cancel, all_logits=all_logits, forced_experts=forced
            )
            self._seen.add(program.last_experts)
            if self._streams:
                self._streams.activity.prompt_ended()
            return found

        if len(ids) <= program.max_tokens:
            self._pieces = 0, 1
            return run(slice(None), segments)
        (segment,) = segments  # a prompt: steps are never that long
        return self._in_pieces(segment, program.max_tokens, run, all_logits)

    def _for(self, num_tokens: int) -> Beside | Mixed | Pipeline:
        """What reads so many, now."""
        if self._streams and num_tokens >= self.streamed_from:
            return self._streams.choose(num_tokens)
        return self._mixed if self._mixed and num_tokens > self._beside.max_tokens else self._beside

    def _in_pieces(
        self,
        segment: Segment,
        most: int,
        run: Callable[[slice, Sequence[Segment]], NDArray[np.float32]],
        all_logits: bool,
    ) -> NDArray[np.float32]:
        """A prompt that is too short to be streamed, and too long for one run beside the GPU."""
        starts = range(0, segment.count, most)
        found = []
        for n, at in enumerate(starts):
            self._pieces = n, len(starts)
            count = min(most, segment.count - at)
            found.append(run(slice(at, at + count), [Segment(segment.table, segment.start + at, count)]))
        return np.concatenate(found) if all_logits else found[-1]

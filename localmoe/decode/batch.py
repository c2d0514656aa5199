"""One batch's way through a step beside a device: what is issued to the device, and what the CPU does meanwhile.

In each layer rows cross twice. The device writes a word when the input of the routed experts lies in the system's
memory, and goes on with the shared experts; the CPU waits for that word in native code, chooses experts, computes them
and writes another word, which the device's stream waits for. All of a step is issued ahead: between device and CPU
there is no Python.

The CPU chooses: its router sees float32 where a GPU's would see what tensor cores have rounded, it costs a thousandth
of the experts' bytes, and the shared experts hide it. Where a device computes hot experts, it is told what was chosen.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.decode.alternation import LayerTimes
from localmoe.decode.hot import HotExperts
from localmoe.devices.device import Device, Stream
from localmoe.devices.spans import Span, Spans
from localmoe.devices.turns import Turns
from localmoe.kernels.ops import CancelFlag, Experts
from localmoe.kernels.recording import Value
from localmoe.kernels.segments import Group, Tokens, turn
from localmoe.model.crossing import DevicePart, LayerMarks, lock_pages, offers_bf16, stops_of
from localmoe.model.programs import HostPrograms, PieceProgram, Programs, chosen_experts


class Batch:
    """The programs of one batch, up to `max_tokens` tokens, and the words that device and CPU wait for.

    `early`: where it is not urgent, the CPU computes its experts before those of other prompts.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        programs: Programs,
        host: HostPrograms,
        max_tokens: int,
        hot: HotExperts | None,
        spans: Spans,
        turns: Turns | None = None,
        *,
        early: bool = False,
    ) -> None:
        self._with_prompts = turns
        self._stream = stream
        self._spans = spans
        self._own = programs.own(max_tokens)
        self._offers, self._sums = stops_of(self._own, "offer"), stops_of(self._own, "exchange")
        self._mixtures = host.mixtures(max_tokens, takes_bf16=offers_bf16(self._own))
        if early:
            self._mixtures.go_early()
        self._givens, self._experts = stops_of(self._mixtures, "given"), stops_of(self._mixtures, "experts")
        self._hot = hot
        self._hot_part = DevicePart(programs, max_tokens) if hot else None
        self._asked, self._chosen, self._answered = (device.new_flag() for _ in range(3))
        self._cpu_times: NDArray[np.float64] = np.zeros((0, 2))  # [layers, 2]: begin and end
        layers = [layer.moe.experts for layer in host.model.layers if layer.moe]
        self._turns = [self._turns_of(n, experts) for n, experts in enumerate(layers)]
        self._base = -self.num_layers  # of the words of a step
        self._start = device.new_event()
        self._marks = [LayerMarks(device) for _ in range(self.num_layers)]
        lock_pages(device, self._mixtures)

    @property
    def num_layers(self) -> int:
        """Those with routed experts."""
        return len(self._offers)

    @property
    def nbytes(self) -> int:
        """Activations and scratch, on the device and in the system's memory."""
        return self._own.nbytes + self._mixtures.nbytes + (self._hot_part.nbytes if self._hot_part else 0)

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return self._mixtures.progress if self.num_layers else self._own.progress

    @property
    def logits(self) -> NDArray[np.float32]:
        """[S, vocab], once all was waited for."""
        return self._own.logits

    @property
    def num_rows(self) -> int:
        """Tokens of the step."""
        return self._tokens.num_rows

    def last_experts(self, top_k: int) -> NDArray[np.int32] | None:
        """[moe layers, T, K] that the last step chose; NOT_COMPUTED where only selected rows were."""
        return chosen_experts(self._mixtures, self._tokens, top_k)

    def begin(self, tokens: Tokens, cancel: CancelFlag, *, urgent: bool) -> None:
        """A new step. Nothing of the one before runs any more."""
        self._tokens = tokens
        self._base += self.num_layers
        unforced = replace(tokens, forced_experts=None)
        self._own.begin(unforced, cancel, urgent=urgent)
        self._mixtures.begin(tokens, cancel, urgent=urgent)
        if self._hot_part:
            self._hot_part.begin(unforced, cancel, urgent=urgent)

    def compute(self) -> None:
        """The CPU's part of all layers, each when the device asks for it: one native call."""
        times = self._mixtures.take_turns([turn for turns in self._turns for turn in turns], self._base)
        ends = np.cumsum([len(turns) for turns in self._turns], dtype=np.intp)
        begins = ends - [len(turns) for turns in self._turns]
        self._cpu_times = np.stack([times[begins, 0], times[ends - 1, 1]], axis=1)

    def start(self) -> None:
        """Issues the point that the first layer's time counts from."""
        self._stream.record(self._start)

    def attend(self, n: int) -> None:
        """Issues layer n, from the sum of the layer before to its own, which is not waited for."""
        own, offer = self._own, self._offers[n]
        rows = self._rows(own, offer.x)
        self._take()
        self._stream.launch(partial(own.run, self._first(n), offer.op))
        self._stream.peer_copy(self._rows(self._mixtures, self._givens[n].x), rows)
        self._stream.record(self._marks[n].offered)
        self._stream.write_flag(self._asked, self._base + n + 1)
        if self._hot_part and self._has_hot(n):
            self._hot_part.give(self._stream, n, rows)
        self._stream.launch(partial(own.run, offer.op, self._sums[n].op))
        self._give()
        self._stream.record(self._marks[n].shared)

    def collect(self, n: int) -> None:
        """Issues the layer's hot experts, the wait for the CPU's part, and their sum."""
        target = self._rows(self._own, self._sums[n].out)
        hot = self._hot_part if self._has_hot(n) else None
        if hot and self._hot:
            self._stream.wait_flag(self._chosen, self._base + n + 1)
            hot.choose(self._stream, n, *self._mixtures.routing(self._experts[n], len(target)))
            self._compute_hot(n, hot)
            self._stream.record(self._marks[n].computed)
        self._stream.wait_flag(self._answered, self._base + n + 1)
        self._stream.peer_copy(target, self._rows(self._mixtures, self._experts[n].out))
        if hot:
            hot.add_to(self._stream, n, target)
        self._stream.record(self._marks[n].summed)

    def end(self) -> None:
        """Issues what comes behind the last layer's sum."""
        self._take()
        self._stream.launch(partial(self._own.run, self._first(self.num_layers), self._own.num_ops))
        self._give()

    def _compute_hot(self, n: int, hot: DevicePart) -> None:
        """In the prompt's own programs, where those take urgent products; else it has to leave."""
        assert self._hot is not None
        asks = self._with_prompts is not None and not self._with_prompts.has_queue
        if asks:
            self._take()
        hot.compute(self._stream, n, self._hot.group(n))
        if asks:
            self._give()

    def _take(self) -> None:
        """Asks for the processors: what is issued from here on wants them."""
        if self._with_prompts:
            self._with_prompts.take(self._stream)

    def _give(self) -> None:
        """A prompt may have them: the CPU computes next, or all is done."""
        if self._with_prompts:
            self._with_prompts.give(self._stream)

    def finish(self) -> None:
        """Once all was waited for: tells what was done, when."""
        begin = self._start
        for n, (marks, (start_s, end_s)) in enumerate(zip(self._marks, self._cpu_times, strict=True)):
            marks.tell(self._spans, n, begin, has_experts=self._has_hot(n))
            self._spans.add(Span("cpu", "experts", n, -1, float(start_s), float(end_s)))
            begin = marks.summed

    def times(self) -> LayerTimes | None:
        """The last step's median layer; None where no layer follows another."""
        if self.num_layers < 2:
            return None
        begins, ends = self._cpu_times[:, 0], self._cpu_times[:, 1]
        return LayerTimes(float(np.median(begins[1:] - ends[:-1])), float(np.median(ends - begins)))

    def _turns_of(self, n: int, experts: Experts) -> list[native.Turn]:
        """All experts of a layer, where they rest, but the hot ones; where it has some, others are told the choice."""
        data = [part.blob.reshape(-1) for part in experts.parts]
        group = Group(0, experts.num_experts, data, True, self._hot.others(n) if self._hot else None)
        first, stop = self._experts[n - 1].op + 1 if n else 0, self._experts[n]
        asked, chosen, answered = ((flag.memory, n + 1) for flag in (self._asked, self._chosen, self._answered))
        if self._has_hot(n):
            routed = turn(first, stop.op, None, asked, chosen)
            return [routed, turn(stop.op, stop.op + 1, group, None, answered)]
        return [turn(first, stop.op + 1, group, asked, answered)]

    def _has_hot(self, n: int) -> bool:
        return self._hot is not None and self._hot.has(n)

    def _first(self, n: int) -> int:
        """The first op behind the sum of the layer before."""
        return self._sums[n - 1].op + 1 if n else 0

    def _rows(self, program: PieceProgram, value: Value | None) -> Any:
        assert value is not None
        return program.rows(value, len(self._tokens.selected) if value.selected else self._tokens.num_rows)

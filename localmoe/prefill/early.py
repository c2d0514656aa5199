"""A prompt in tiles of tokens, whose rows cross between a device and the CPU while the device attends to other tiles.

Experts are computed for all tokens at once, which reads their weights once. But a tile's rows leave as soon as it is
attended to, beside the attention of the next tile; and once the experts are computed, the first tile is attended to in
the next layer as soon as its own rows are back, beside the way back of the others. Copies have streams of their own.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from localmoe.devices.device import Device, Event
from localmoe.devices.spans import Span, Spans, Stage
from localmoe.kernels.ops import CancelFlag
from localmoe.kernels.segments import Stop, Tokens
from localmoe.model.crossing import DevicePart, stops_of
from localmoe.model.programs import PieceProgram
from localmoe.prefill.cluster import Share, share_of

NUM_TILES = 4  # three quarters of the rows cross beside attention; each tile reads the dense weights once more
LEAST_TILE = 32  # tokens


def cut(tokens: Tokens, num_tiles: int, most: int) -> list[Share]:
    """Up to `num_tiles` pieces of about as many tokens, and `most` at most, in order."""
    count = max(-(-tokens.num_rows // most), min(num_tiles, tokens.num_rows // LEAST_TILE))
    edges = np.linspace(0, tokens.num_rows, count + 1).astype(int)
    return [share_of(tokens, (range(a, b),)) for a, b in pairwise(edges)]


class Ways:
    """A device's streams: it computes on one, and rows leave and come back on two others."""

    def __init__(self, device: Device) -> None:
        self.computes, self.leaves, self.comes = (device.new_stream(name) for name in ("compute", "leave", "come"))

    def reset(self) -> None:
        """After a failure: nothing runs any more."""
        for stream in (self.computes, self.leaves, self.comes):
            stream.reset()


class _Marks:
    """Points of one tile in one layer: attention, and each way of its rows, from and to."""

    def __init__(self, device: Device) -> None:
        self.begun, self.attended, self.leaves, self.left, self.comes, self.came = (
            device.new_event() for _ in range(6)
        )


class Tile:
    """What `program`, of Programs.own, computes of a piece of the tokens, and the rows that cross for it.

    `rows` are those of all tokens, in the system's memory; only the tile's own are read and written.
    """

    def __init__(self, device: Device, ways: Ways, program: PieceProgram, number: int) -> None:
        self.program = program
        self._device, self._ways, self._number = device, ways, number
        self._offers, self._sums = stops_of(program, "offer"), stops_of(program, "exchange")
        self._latents = stops_of(program, "latents")
        self._marks = [_Marks(device) for _ in self._offers]

    @property
    def num_layers(self) -> int:
        """Those with routed experts."""
        return len(self._offers)

    def begin(self, share: Share, cancel: CancelFlag, *, urgent: bool) -> None:
        """A new run, about these tokens."""
        self.share = share
        self.program.begin(share.tokens, cancel, urgent=urgent)

    def attend(self, n: int, rows: Any) -> None:
        """Issues layer `n` to its routed experts' input, and how that leaves for `rows`."""
        marks, offer, ways = self._marks[n], self._offers[n], self._ways
        ways.computes.record(marks.begun)
        ways.computes.launch(partial(self.program.run, self._first(n), self._end(n)))
        ways.computes.record(marks.attended)
        ways.leaves.wait(marks.attended)
        ways.leaves.record(marks.leaves)
        own = self._own(offer, offer.x)
        for part in self.share.of(offer):
            ways.leaves.peer_copy(rows[part.whole : part.whole + part.count], own[part.own : part.own + part.count])
        ways.leaves.record(marks.left)

    def left(self, n: int) -> Event:
        """Reached when the tile's rows are in the system's memory."""
        return self._marks[n].left

    def give(self, n: int, part: DevicePart) -> None:
        """Issues a copy of the routed experts' input for those that the device computes."""
        offer = self._offers[n]
        own = self._own(offer, offer.x)
        for rows in self.share.of(offer):
            part.take(self._ways.computes, n, own[rows.own : rows.own + rows.count], rows.whole)

    def share_experts(self, n: int) -> None:
        """Issues the shared experts."""
        if self._num_rows(n):
            self._ways.computes.launch(partial(self.program.run, self._offers[n].op, self._sums[n].op))

    def collect(self, n: int, rows: Any, *after: Event) -> None:
        """Issues the way back of the experts' sum, behind the events."""
        marks, due, ways = self._marks[n], self._sums[n], self._ways
        for event in after:
            ways.comes.wait(event)
        ways.comes.record(marks.comes)
        own = self._own(due, due.out)
        for part in self.share.of(due):
            ways.comes.peer_copy(own[part.own : part.own + part.count], rows[part.whole : part.whole + part.count])
        ways.comes.record(marks.came)

    def begun(self, n: int) -> Event:
        """Reached when the tile's attention begins."""
        return self._marks[n].begun

    def resume(self, n: int, part: DevicePart | None) -> None:
        """Issues the wait for the sum that comes back, and the addition of what the device's own experts gave."""
        due = self._sums[n]
        self._ways.computes.wait(self._marks[n].came)
        if part is None:
            return
        own = self._own(due, due.out)
        for rows in self.share.of(due):
            part.add_to(self._ways.computes, n, own[rows.own : rows.own + rows.count], rows.whole)

    def end(self) -> None:
        """Issues what comes behind the last layer's sum."""
        if len(self.share.tokens.selected):
            self._ways.computes.launch(partial(self.program.run, self._first(self.num_layers), self.program.num_ops))

    def tell(self, spans: Spans, n: int) -> None:
        """Adds what was done in layer `n`, once all was waited for."""
        marks, offer, due = self._marks[n], self._offers[n], self._sums[n]
        out, back = (int(self._own(stop, value).nbytes) for stop, value in ((offer, offer.x), (due, due.out)))
        self._tell(spans, "attention", n, marks.begun, marks.attended, 0)
        if self._num_rows(n):
            self._tell(spans, "exchange", n, marks.leaves, marks.left, out)
            self._tell(spans, "exchange", n, marks.comes, marks.came, back)

    def _tell(self, spans: Spans, stage: Stage, n: int, first: Event, last: Event, num_bytes: int) -> None:
        start_s, end_s = first.reached_s, last.reached_s
        if start_s is not None and end_s is not None:
            spans.add(Span(self._device.name, stage, n, self._number, start_s, end_s, num_bytes))

    def _first(self, n: int) -> int:
        """The first op behind the sum of the layer before."""
        return self._sums[n - 1].op + 1 if n else 0

    def _end(self, n: int) -> int:
        """Of the layer's attention; where nobody wants the tile's rows, behind its latents."""
        if self._num_rows(n):
            return self._offers[n].op
        return next(stop.op + 1 for stop in reversed(self._latents) if stop.op < self._offers[n].op)

    def _num_rows(self, n: int) -> int:
        return self.share.num_rows(self._offers[n])

    def _own(self, stop: Stop, value: Any) -> Any:
        return self.program.rows(value, self.share.num_rows(stop))


def hidden_share(spans: Iterable[Span]) -> float:
    """Of the bytes that crossed, the share that did so while the same device attended: by time, within each copy."""
    found = tuple(spans)
    moved = [span for span in found if span.stage == "exchange" and span.num_bytes]
    hidden = sum(span.num_bytes * _covered(span, found) for span in moved)
    return hidden / max(1, sum(span.num_bytes for span in moved))


def _covered(span: Span, others: Sequence[Span]) -> float:
    """Of its length, what lies under attention: a device attends to one tile at a time."""
    length_s = max(span.end_s - span.start_s, 1e-9)
    under = (s for s in others if s.stage == "attention" and s.device == span.device)
    return min(1.0, sum(max(0.0, min(s.end_s, span.end_s) - max(s.start_s, span.start_s)) for s in under) / length_s)

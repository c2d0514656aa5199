"""Several devices: who has which tokens and experts, and what they exchange (SmallEP).

Tokens are split for attention, experts for the mixture. In each layer every device gets all tokens' rows as they are,
chooses experts and sorts for itself, computes its own experts and sums them up to one row for each token; devices then
add up each other's rows of the tokens that they have. On devices that share the system's memory the latent cache is
one, so latents are waited for and not sent.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from localmoe.kernels.cpu import Value
from localmoe.kernels.ops import Segment
from localmoe.kernels.segments import SegmentOps, SegmentProgram, Stop, Tokens
from localmoe.model.cache import LatentCache
from localmoe.model.decoder import Model, decode
from localmoe.model.experts import routed
from localmoe.prefill.compute import compute_groups, finish, segment, timed
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows, which are the device's own from `own` on and all tokens' from `whole` on."""

    own: int
    whole: int
    count: int


@dataclass(frozen=True)
class Share:
    """A device's tokens. `rows` and `selected` say which of all tokens', and of all selected tokens', rows they are."""

    tokens: Tokens
    rows: tuple[Rows, ...]
    selected: tuple[Rows, ...]

    def of(self, stop: Stop) -> tuple[Rows, ...]:
        """Its rows of what is exchanged there."""
        assert stop.x is not None
        return self.selected if stop.x.selected else self.rows

    def num_rows(self, stop: Stop) -> int:
        """How many those are."""
        return sum(rows.count for rows in self.of(stop))


@dataclass(frozen=True)
class Exchanged:
    """Bytes between devices in one pass, beside what other ways of sharing experts would have sent.

    `per_expert`: each token's row to each of its experts on other devices, and a row back from each (dispatch and
    combine). `deduplicated`: the same, but one row to, and one from, each device that has any of them. Both are
    counted from the experts that were chosen. `latents` is what devices without common memory would send besides.
    """

    gathered: int
    reduced: int
    per_expert: int
    deduplicated: int
    latents: int

    @property
    def total(self) -> int:
        """What was sent: rows out and back."""
        return self.gathered + self.reduced


def most_own_tokens(max_tokens: int, num_devices: int) -> int:
    """Of any device's share."""
    return 2 * -(-max_tokens // (2 * num_devices))


def share_tokens(tokens: Tokens, num_devices: int) -> list[Share]:
    """An early and a late block of tokens for each device, so that all see about as many keys."""
    edges = np.linspace(0, tokens.num_rows, 2 * num_devices + 1).astype(int)
    blocks = [range(a, b) for a, b in pairwise(edges)]
    return [_share(tokens, (blocks[n], blocks[2 * num_devices - 1 - n])) for n in range(num_devices)]


def _share(tokens: Tokens, blocks: Sequence[range]) -> Share:
    own = np.concatenate([np.arange(block.start, block.stop) for block in blocks]).astype(np.int32)
    place = {int(token): n for n, token in enumerate(own)}
    chosen = [(place[int(token)], n) for n, token in enumerate(tokens.selected) if int(token) in place]
    chosen.sort()
    selected = np.asarray([token for token, _ in chosen], np.int32)
    segments = [part for block in blocks for part in _cut(tokens.segments, block)]
    return Share(
        Tokens(np.ascontiguousarray(tokens.ids[own]), segments, selected),
        _runs([int(token) for token in own]),
        _runs([n for _, n in chosen]),
    )


def _cut(segments: Sequence[Segment], block: range) -> list[Segment]:
    """What `block` has of the segments."""
    found, first = [], 0
    for s in segments:
        start, stop = max(first, block.start), min(first + s.count, block.stop)
        if start < stop:
            found.append(Segment(s.table, s.start + start - first, stop - start))
        first += s.count
    return found


def _runs(whole: Sequence[int]) -> tuple[Rows, ...]:
    """Own rows 0, 1, ... and the numbers that they have among all, as runs that follow each other in both."""
    found: list[Rows] = []
    for own, n in enumerate(whole):
        last = found[-1] if found else None
        if last and last.whole + last.count == n:
            found[-1] = Rows(last.own, last.whole, last.count + 1)
        else:
            found.append(Rows(own, n, 1))
    return tuple(found)


def own_program(ops: SegmentOps, model: Model, cache: LatentCache) -> Value:
    """The network of a device's own tokens, with the routed experts elsewhere; returns its logits."""
    return decode(ops, model, cache, routed=lambda _, x, w: ops.exchanged(x))


def mixtures_program(ops: SegmentOps, model: Model) -> None:
    """The routed experts of all layers, for all tokens."""
    last = len(model.layers) - 1
    for n, layer in enumerate(model.layers):
        if layer.moe is not None:
            routed(ops, ops.given(model.config.hidden, selected=n == last), layer.moe)


class Exchange:
    """What the lanes of one pass do together."""

    def __init__(self, lanes: Sequence[Lane], shares: Sequence[Share], tokens: Tokens) -> None:
        self.gathered = 0
        self.reduced = 0
        self._lanes = lanes
        self._shares = shares
        self._tokens = tokens
        self._lock = threading.Lock()

    def compute(self, n: int, job: Job) -> None:
        """compute.compute for device `n` among several."""
        lane, share, first = self._lanes[n], self._shares[n], 0
        program = lane.program
        for stop in program.ops.stops:
            end = stop.op + 1 if stop.kind == "latents" else stop.op
            if share.tokens.num_rows and (stop.x is None or share.num_rows(stop)):
                segment(lane, program, first, end, _routed_before(program, stop))
            first = stop.op + 1
            self._meet(lane, job)
            if stop.kind == "exchange":
                self._mix(n, stop, job)
        if len(share.tokens.selected):
            segment(lane, program, first, program.num_ops, len(lane.by_layer))
        finish(lane, job)

    def _meet(self, lane: Lane, job: Job) -> None:
        """What is issued from now on begins when every device has come as far as this one."""
        lane.computes.record(lane.reached)
        job.meet()
        for other in self._lanes:
            if other is not lane:
                lane.computes.wait(other.reached)
        job.meet()  # nobody records again before all wait for this time's point

    def _mix(self, n: int, stop: Stop, job: Job) -> None:
        lane, mixtures = self._lanes[n], self._lanes[n].mixtures
        before, group_stop = _mixture(mixtures, stop.layer)
        self._gather(n, stop, group_stop)
        segment(lane, mixtures, before, group_stop.op, stop.layer)
        compute_groups(lane, job, group_stop)
        if not lane.by_layer[stop.layer]:
            out = self._whole(lane, group_stop.out, stop)
            lane.computes.launch(lambda: out.fill(0))
        self._meet(lane, job)
        self._reduce(n, stop, group_stop)

    def _gather(self, n: int, stop: Stop, group_stop: Stop) -> None:
        """All tokens' rows, unsorted, to device `n`."""
        lane = self._lanes[n]
        whole = self._whole(lane, group_stop.x, stop)
        for m, (other, share) in enumerate(zip(self._lanes, self._shares, strict=True)):
            assert stop.x is not None
            own = other.program.rows(stop.x, share.num_rows(stop))
            for rows in share.of(stop):
                lane.computes.peer_copy(_at(whole, rows.whole, rows.count), _at(own, rows.own, rows.count))
            if m != n:
                self._count(gathered=own.nbytes)

    def _reduce(self, n: int, stop: Stop, group_stop: Stop) -> None:
        """The sum of all devices' rows of device n's own tokens, always in the devices' order."""
        lane, share = self._lanes[n], self._shares[n]
        assert stop.out is not None
        own = lane.program.rows(stop.out, share.num_rows(stop))
        for m, other in enumerate(self._lanes):
            theirs = self._whole(other, group_stop.out, stop)
            for rows in share.of(stop):
                target, source = _at(own, rows.own, rows.count), _at(theirs, rows.whole, rows.count)
                if m == 0:
                    lane.computes.peer_copy(target, source)
                else:
                    timed(lane, "exchange", stop.layer, -1, partial(_add, target, source))
            if m != n:
                self._count(reduced=own.nbytes)

    def _whole(self, lane: Lane, value: Value | None, stop: Stop) -> NDArray[np.float32]:
        assert value is not None and stop.x is not None
        count = len(self._tokens.selected) if stop.x.selected else self._tokens.num_rows
        return lane.mixtures.rows(value, count)

    def _count(self, gathered: int = 0, reduced: int = 0) -> None:
        with self._lock:
            self.gathered += gathered
            self.reduced += reduced

    def exchanged(self, hidden: int, latent_bytes: int) -> Exchanged:
        """Once the pass is through. `latent_bytes` are those of one token's row in all layers."""
        others = len(self._lanes) - 1
        per_expert = deduplicated = 0
        for layer in range(len(self._lanes[0].by_layer)):
            rows_of = [self._sends(layer, n) for n in range(len(self._lanes))]
            per_expert += sum(a for a, _ in rows_of)
            deduplicated += sum(b for _, b in rows_of)
        row_bytes = 2 * hidden * FLOAT_BYTES  # out and back
        return Exchanged(
            self.gathered,
            self.reduced,
            per_expert * row_bytes,
            deduplicated * row_bytes,
            others * self._tokens.num_rows * latent_bytes,
        )

    def _sends(self, layer: int, n: int) -> tuple[int, int]:
        """Rows that the other devices' tokens would send to device `n`: one for each expert, and one for each token."""
        lane = self._lanes[n]
        _, stop = _mixture(lane.mixtures, layer)
        assert stop.x is not None
        selected = stop.x.selected
        chosen = lane.mixtures.chosen(layer)
        own = self._shares[n].selected if selected else self._shares[n].rows
        is_other = np.ones(len(self._tokens.selected) if selected else self._tokens.num_rows, bool)
        for rows in own:
            is_other[rows.whole : rows.whole + rows.count] = False
        share = [e for g in lane.by_layer[layer] for e in range(g.first, g.first + g.count)]
        hits = np.isin(chosen[: len(is_other)][is_other], share)
        return int(hits.sum()), int(hits.any(axis=1).sum())


def _mixture(mixtures: SegmentProgram, layer: int) -> tuple[int, Stop]:
    """The first op of a layer with routed experts in mixtures_program, and its groups' stop."""
    stops = [stop for stop in mixtures.ops.stops if stop.kind == "experts"]
    return (stops[layer - 1].op + 1 if layer else 0), stops[layer]


def _routed_before(program: SegmentProgram, stop: Stop) -> int:
    return sum(s.kind == "exchange" and s.op < stop.op for s in program.ops.stops)


def _at(rows: NDArray[np.float32], start: int, count: int) -> NDArray[np.float32]:
    return rows[start : start + count]


def _add(target: NDArray[np.float32], source: NDArray[np.float32]) -> None:
    np.add(target, source, out=target)

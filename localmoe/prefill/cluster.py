"""Several devices: who has which tokens and experts, and what they exchange (SmallEP).

Tokens are split for attention, experts for the mixture. In each layer every device gets all tokens' rows as they are,
chooses experts and sorts for itself, computes its own experts and sums them up to one row for each token; devices then
add up each other's rows of the tokens that they have. Every device needs all tokens' latents: where programs write one
cache, they are waited for; else each device fetches a layer's new rows from the others.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from localmoe.kernels.cpu import Value
from localmoe.kernels.ops import Segment
from localmoe.kernels.segments import Stop, Tokens
from localmoe.model.mirror import written
from localmoe.model.programs import PieceProgram
from localmoe.prefill.compute import compute_groups, finish, routed_before, segment, timed
from localmoe.prefill.job import Job
from localmoe.prefill.lane import Lane


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
    counted from the experts that were chosen. `latents` is what devices without common memory send besides, and
    `sent_latents` what was sent of it here.
    """

    gathered: int
    reduced: int
    per_expert: int
    deduplicated: int
    latents: int
    sent_latents: int

    @property
    def total(self) -> int:
        """What was sent of rows, out and back."""
        return self.gathered + self.reduced


def most_own_tokens(max_tokens: int, num_devices: int) -> int:
    """Of any device's share."""
    return 2 * -(-max_tokens // (2 * num_devices))


def share_tokens(tokens: Tokens, num_devices: int) -> list[Share]:
    """An early and a late block of tokens for each device, so that all see about as many keys."""
    edges = np.linspace(0, tokens.num_rows, 2 * num_devices + 1).astype(int)
    blocks = [range(a, b) for a, b in pairwise(edges)]
    return [share_of(tokens, (blocks[n], blocks[2 * num_devices - 1 - n])) for n in range(num_devices)]


def share_of(tokens: Tokens, blocks: Sequence[range]) -> Share:
    """Those tokens, as a run of their own."""
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


class Exchange:
    """What the lanes of one pass do together."""

    def __init__(self, lanes: Sequence[Lane], shares: Sequence[Share], tokens: Tokens) -> None:
        self.gathered = 0
        self.reduced = 0
        self.sent_latents = 0
        self._written = [written(share.tokens.segments) for share in shares]
        self._lanes = lanes
        self._shares = shares
        self._tokens = tokens
        self._lock = threading.Lock()

    def compute(self, n: int, job: Job) -> None:
        """compute.compute for device `n` among several."""
        lane, share, first = self._lanes[n], self._shares[n], 0
        program = lane.program
        for stop in program.stops:
            if stop.kind == "offer":  # shared experts come first: rows are not sent while a stream computes
                continue
            end = stop.op + 1 if stop.kind == "latents" else stop.op
            if share.tokens.num_rows and (stop.x is None or share.num_rows(stop)):
                segment(lane, program, first, end, routed_before(program, stop))
            first = stop.op + 1
            self._meet(lane, job)
            if stop.kind == "latents":
                self._fetch_latents(n, stop, routed_before(program, stop))
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
            lane.computes.launch(partial(_clear, out))
        self._meet(lane, job)
        self._reduce(n, stop, group_stop)

    def _fetch_latents(self, n: int, stop: Stop, layer: int) -> None:
        """A layer's new rows of the other devices, where these have a cache of their own; then home, if that is far."""
        lane = self._lanes[n]
        others = [m for m, other in enumerate(self._lanes) if other.latents is not lane.latents]
        if others:
            mine = lane.latents.rows(stop.layer)
            with lane.timed(lane.computes, "exchange", layer):
                for m in others:
                    theirs = self._lanes[m].latents.rows(stop.layer)
                    for rows in self._written[m]:
                        lane.computes.peer_copy(mine[rows.start : rows.stop], theirs[rows.start : rows.stop])
                        self._count(sent_latents=len(rows) * mine.shape[1])
        if lane.home is not None:
            lane.latents_written(stop.layer)

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
                    continue
                if stop.part is not None and m != n:
                    part = _at(lane.program.rows(stop.part, share.num_rows(stop)), rows.own, rows.count)
                    lane.computes.peer_copy(part, source)
                    source = part
                timed(lane, "exchange", stop.layer, -1, partial(_add, target, source))
            if m != n:
                self._count(reduced=own.nbytes)

    def _whole(self, lane: Lane, value: Value | None, stop: Stop) -> Any:
        assert value is not None and stop.x is not None
        count = len(self._tokens.selected) if stop.x.selected else self._tokens.num_rows
        return lane.mixtures.rows(value, count)

    def _count(self, gathered: int = 0, reduced: int = 0, sent_latents: int = 0) -> None:
        with self._lock:
            self.gathered += gathered
            self.reduced += reduced
            self.sent_latents += sent_latents

    def exchanged(self, latent_bytes: int) -> Exchanged:
        """Once the pass is through. `latent_bytes` are those of one token's row in all layers."""
        others = len(self._lanes) - 1
        per_expert = deduplicated = row_bytes = 0
        for layer in range(len(self._lanes[0].by_layer)):
            rows_of = [self._sends(layer, n) for n in range(len(self._lanes))]
            per_expert += sum(a for a, _ in rows_of)
            deduplicated += sum(b for _, b in rows_of)
            row_bytes = self._row_bytes(layer)
        return Exchanged(
            self.gathered,
            self.reduced,
            per_expert * row_bytes,
            deduplicated * row_bytes,
            others * self._tokens.num_rows * latent_bytes,
            self.sent_latents,
        )

    def _row_bytes(self, layer: int) -> int:
        """Of a token's row out, and of what comes back."""
        mixtures = self._lanes[0].mixtures
        _, stop = _mixture(mixtures, layer)
        assert stop.x is not None and stop.out is not None
        return int(mixtures.rows(stop.x, 1).nbytes + mixtures.rows(stop.out, 1).nbytes)

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


def _mixture(mixtures: PieceProgram, layer: int) -> tuple[int, Stop]:
    """The first op of a layer with routed experts in Programs.mixtures, and its groups' stop."""
    stops = [stop for stop in mixtures.stops if stop.kind == "experts"]
    return (stops[layer - 1].op + 1 if layer else 0), stops[layer]


def _at(rows: Any, start: int, count: int) -> Any:
    return rows[start : start + count]


def _add(target: Any, source: Any) -> None:
    target += source


def _clear(rows: Any) -> None:
    rows[...] = 0

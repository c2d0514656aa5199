"""What devices did in the last seconds, from spans to what a panel can draw: each span is looked at once."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from localmoe.devices.spans import Span, Stage
from localmoe.events import Lane, Lanes, LaneSpan, LaneStage

WINDOW_S = 4.0
FINEST_S = WINDOW_S / 160  # what begins within this after another span is told as one with it
IDLE_S = 0.25  # a pause that long lies between requests

LANES: dict[Stage, LaneStage] = {
    "load": "load",
    "attention": "compute",
    "shared": "compute",
    "experts": "compute",
    "pass": "compute",
    "exchange": "exchange",
    "unload": "unload",
}
_ORDER: tuple[LaneStage, ...] = ("load", "compute", "exchange", "unload")


@dataclass(slots=True)
class _Piece:
    """Spans that are told as one. Seconds are time.perf_counter()'s."""

    layer: int
    group: int
    start_s: float
    end_s: float
    busy_s: float
    num_bytes: int

    def told(self, now_s: float) -> LaneSpan:
        start_s, end_s = round(self.start_s - now_s, 6), round(self.end_s - now_s, 6)
        return LaneSpan(self.layer, self.group, start_s, end_s, round(self.busy_s, 6), self.num_bytes)


class _Track:
    """One lane's pieces, at most one for each FINEST_S of the window and one more."""

    def __init__(self) -> None:
        self.pieces: deque[_Piece] = deque()
        self._covered_s = 0.0  # the latest end so far

    def add(self, span: Span) -> None:
        busy_s = max(0.0, span.end_s - max(span.start_s, self._covered_s))
        self._covered_s = max(self._covered_s, span.end_s)
        last = self.pieces[-1] if self.pieces else None
        if last and span.start_s < last.start_s + FINEST_S:
            last.layer, last.group = span.layer, span.group
            last.start_s, last.end_s = min(last.start_s, span.start_s), max(last.end_s, span.end_s)
            last.busy_s += busy_s
            last.num_bytes += span.num_bytes
        else:
            piece = _Piece(span.layer, span.group, span.start_s, span.end_s, busy_s, span.num_bytes)
            self.pieces.append(piece)

    def forget(self, before_s: float) -> None:
        while self.pieces and self.pieces[0].end_s <= before_s:
            self.pieces.popleft()


class LaneWindow:
    """All lanes of the last WINDOW_S. `num_dense` layers come before those with routed experts."""

    def __init__(self, num_layers: int = 0, num_dense: int = 0) -> None:
        self._num_layers = num_layers
        self._num_dense = num_dense
        self._tracks: dict[tuple[str, LaneStage], _Track] = {}
        self._computed: tuple[float, int | None] = (0.0, None)  # when the last layer was computed, and which

    def add(self, spans: Iterable[Span]) -> None:
        """New ones, in any order."""
        for span in sorted(spans, key=lambda span: span.start_s):
            stage = LANES[span.stage]
            self._tracks.setdefault((span.device, stage), _Track()).add(span)
            if stage == "compute" and span.end_s >= self._computed[0]:
                self._computed = span.end_s, self._layer(span)

    def event(self, now_s: float) -> Lanes:
        """The window that ends at `now_s`, of time.perf_counter()."""
        begin_s = now_s - WINDOW_S
        for key, track in list(self._tracks.items()):
            track.forget(begin_s)
            if not track.pieces:
                del self._tracks[key]
        keys = sorted(self._tracks, key=lambda key: (key[0], _ORDER.index(key[1])))
        lanes = tuple(_lane(*key, self._tracks[key].pieces, now_s) for key in keys)
        layer = self._computed[1] if self._computed[0] > begin_s else None
        return Lanes(now_s, WINDOW_S, lanes, overlap(lanes), layer, self._num_layers)

    def _layer(self, span: Span) -> int | None:
        """Its number among all; the head counts as part of the last one."""
        return None if span.layer < 0 else min(self._num_layers, self._num_dense + span.layer + 1)


def overlap(lanes: Sequence[Lane], window_s: float = WINDOW_S) -> float | None:
    """As events.Lanes defines it."""
    most_s = wall_s = 0.0
    for device in {lane.device for lane in lanes}:
        both = [lane for lane in lanes if lane.device == device and lane.stage in ("load", "compute")]
        if len(both) == 2:
            most_s += max(lane.busy_s for lane in both)
            wall_s += _wall_s([span for lane in both for span in lane.spans], window_s)
    return min(1.0, most_s / wall_s) if wall_s else None


def _wall_s(spans: Sequence[LaneSpan], window_s: float) -> float:
    """From the first to the last, without long pauses."""
    wall_s, end_s = 0.0, None
    for span in sorted(spans, key=lambda span: span.start_s):
        start_s = max(-window_s, span.start_s)
        if end_s is None or start_s - end_s > IDLE_S:
            end_s = start_s
        wall_s += max(0.0, span.end_s - end_s)
        end_s = max(end_s, span.end_s)
    return wall_s


def _lane(device: str, stage: LaneStage, pieces: Iterable[_Piece], now_s: float) -> Lane:
    spans = tuple(piece.told(now_s) for piece in pieces)
    within = [_share_within(span) for span in spans]
    busy_s = sum(share * span.busy_s for share, span in zip(within, spans, strict=True))
    num_bytes = sum(share * span.num_bytes for share, span in zip(within, spans, strict=True))
    return Lane(device, stage, round(busy_s, 6), round(num_bytes), spans)


def _share_within(span: LaneSpan) -> float:
    """Of the span's length, what lies in the window."""
    length_s = span.end_s - span.start_s
    return min(1.0, (span.end_s + WINDOW_S) / length_s) if length_s else 1.0

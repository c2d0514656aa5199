"""What the pipeline did, when: one span for each stage of each group and layer."""

from collections import deque
from dataclasses import dataclass
from typing import Literal

MOST_SPANS = 1 << 16  # the oldest go first

Stage = Literal["load", "attention", "experts", "exchange"]


@dataclass(frozen=True, slots=True)
class Span:
    """One interval. Seconds are time.perf_counter()'s.

    load: a group's bytes, from the first read to the last byte in place. attention: all of a layer that is not routed
    experts, from the end of the layer before; the head is that of a layer behind the last. experts: a group's part of
    all tokens. exchange: rows between devices. `layer` counts layers with routed experts, `group` the groups of the
    device in the pass, -1 where there is none.
    """

    device: str
    stage: Stage
    layer: int
    group: int
    start_s: float
    end_s: float


class Spans:
    """A bounded buffer; any thread may add."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=most)

    def add(self, span: Span) -> None:
        """The oldest one goes when the buffer is full."""
        self._spans.append(span)

    def clear(self) -> None:
        """Forgets all."""
        self._spans.clear()

    def all(self) -> tuple[Span, ...]:
        """In the order in which they ended, nearly."""
        return tuple(self._spans)

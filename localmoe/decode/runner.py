"""Makes one token for each of several sessions in one run of a program of its own."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.spans import Spans
from localmoe.kernels.ops import CancelFlag, PageTable, Program, Segment


class Runner:
    """Decode steps as urgent work. `flag` aborts the step that runs."""

    def __init__(self, program: Program, flag: CancelFlag) -> None:
        self.flag = flag
        self._program = program

    @property
    def max_sessions(self) -> int:
        """The largest batch."""
        return self._program.max_tokens

    @property
    def recorded(self) -> Spans | None:
        """What the program did, when; None where it does not tell."""
        return getattr(self._program, "recorded", None)

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """[moe layers, S, K]: the experts that the last step chose, below 0 for none; None where nothing tells."""
        return getattr(self._program, "last_experts", None)

    def step(self, tokens: Sequence[int], tables: Sequence[PageTable], starts: Sequence[int]) -> NDArray[np.float32]:
        """Logits [S, vocab] after one token of each session, at position `starts[s]` of its table.

        CancelledError when the flag was set: the new rows are then undefined, the step may be repeated.
        """
        segments = [Segment(table, start, 1) for table, start in zip(tables, starts, strict=True)]
        return self._program.forward(np.asarray(tokens, np.int32), segments, urgent=True, cancel=self.flag)

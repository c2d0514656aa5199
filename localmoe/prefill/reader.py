"""Reads a prompt into the latent cache, chunk by chunk, through a program of its own."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.spans import Spans
from localmoe.kernels.ops import CancelFlag, PageTable, Program, Segment


class Reader:
    """One session's chunks as bulk work. `flag` aborts the chunk that runs."""

    def __init__(self, program: Program, flag: CancelFlag) -> None:
        self.flag = flag
        self._program = program

    @property
    def max_tokens(self) -> int:
        """The longest chunk."""
        return self._program.max_tokens

    @property
    def progress(self) -> float:
        """How much of the running chunk is done, below 1; 0 where the program does not tell. Any thread may ask."""
        done = float(getattr(self._program, "progress", 0.0))
        return done if done < 1 else 0.0  # 1 is the last chunk's, until this one has begun

    @property
    def gives_way(self) -> bool:
        """Whether the running chunk waits while a short prompt passes it: it does unless the program says otherwise."""
        return getattr(self._program, "gives_way", True)

    @property
    def recorded(self) -> Spans | None:
        """What the program did, when; None where it does not tell."""
        return getattr(self._program, "recorded", None)

    def read(self, ids: Sequence[int], table: PageTable, start: int) -> NDArray[np.float32]:
        """Logits [vocab] after `ids`, whose first lies at position `start`; `table` has room for them.

        CancelledError when the flag was set: the rows from `start` on are then undefined.
        """
        segment = Segment(table, start, len(ids))
        return self._program.forward(np.asarray(ids, np.int32), [segment], urgent=False, cancel=self.flag)[0]

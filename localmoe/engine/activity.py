"""Whether answers are being written: what reading looks at before it takes a device that steps need too."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

RECENT_S = 0.5  # what ended longer ago was its answer's last step
NEXT_S = 0.03  # between two steps of an answer; a pass over the experts takes many times as long


class Activity:
    """Steps tell it when they run, and so do prompts that pass longer ones; any thread may ask."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_begun = 0
        self._num_running = 0
        self._ended_s = float("-inf")  # of time.monotonic(): the last step, or prompt

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, however it ends."""
        with self._changed:
            self._num_begun += 1
            self._num_running += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_running -= 1
                self._ended_s = time.monotonic()

    def prompt_ended(self) -> None:
        """One was read, so that its answer's first step follows."""
        with self._changed:
            self._ended_s = time.monotonic()

    def goes_on(self) -> bool:
        """Whether a step runs, or follows within NEXT_S on what ended just now: for that it waits.

        A prompt often comes as soon as the answer before it has ended, so that a step was there of late says little.
        """
        with self._changed:
            if self._num_running:
                return True
            if time.monotonic() - self._ended_s > RECENT_S:
                return False
            begun = self._num_begun
            return self._changed.wait_for(lambda: self._num_begun > begun, NEXT_S)

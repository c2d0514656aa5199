"""A flag between threads: what a word in page-locked memory is between a GPU's stream and the host."""

import time

import numpy as np

from localmoe import _native as native

LOOK_S = 0.005  # how often whoever waits looks whether the stream has failed that was to write it


class HostFlag:
    """device.Flag. It also carries the failure of the stream that was to write it, until that is issued again."""

    def __init__(self) -> None:
        self.memory = np.zeros(1, np.int32)
        self._error: BaseException | None = None

    @property
    def value(self) -> int:
        """As device.Flag says."""
        return int(self.memory[0])

    def set(self, value: int) -> None:
        """As device.Flag says."""
        assert value >= self.value, "a flag's values rise"
        self.memory[0] = value

    def wait(self, value: int, timeout: float) -> bool:
        """As device.Flag says."""
        end_s = time.perf_counter() + timeout
        while True:
            left_s = end_s - time.perf_counter()
            if native.wait_word(self.memory, value, max(0.0, min(left_s, LOOK_S))):
                return True
            if self._error:
                raise self._error
            if left_s <= 0:
                return False

    def expect(self) -> None:
        """A stream is to write it from now on: a failure before does not count."""
        self._error = None

    def fail(self, error: BaseException) -> None:
        """The stream that was to write it has failed."""
        self._error = error

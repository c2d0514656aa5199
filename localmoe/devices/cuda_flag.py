"""A flag in page-locked memory: the host reads and writes it at once, a stream in its order."""

import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.cuda_event import poll
from localmoe.devices.cuda_runtime import Word

CHECK_S = 0.01  # how often whoever waits looks whether the GPU still works


class Writer(Protocol):
    """The stream that is to write a flag."""

    def check(self) -> None: ...


class CudaFlag:
    """device.Flag. It also carries the failure of the stream that is to write it."""

    def __init__(self, word: Word) -> None:
        self.word = word
        self.error: BaseException | None = None
        self._writer: Writer | None = None
        self._checked_s = 0.0

    @property
    def memory(self) -> NDArray[np.int32]:
        """As device.Flag says."""
        return self.word.memory

    @property
    def value(self) -> int:
        """As device.Flag says."""
        return self.word.value

    def set(self, value: int) -> None:
        """As device.Flag says."""
        assert value >= self.word.value, "a flag's values rise"
        self.word.value = value

    def wait(self, value: int, timeout: float) -> bool:
        """As device.Flag says; raises DeviceLostError too."""
        return poll(lambda: self._is_at(value), time.perf_counter() + timeout)

    def expect(self, writer: Writer) -> None:
        """That stream is to write it: what failed before does not count any more."""
        self._writer = writer
        self.error = None

    def fail(self, error: BaseException) -> None:
        """The stream that was to write it has failed."""
        self.error = error

    def release(self, value: int) -> None:
        """Ends the wait of a stream that nobody wants any more."""
        if self.word.value < value:
            self.word.value = value

    def _is_at(self, value: int) -> bool:
        if self.word.value >= value:
            return True
        if self.error:
            raise self.error
        if self._writer and time.perf_counter() - self._checked_s > CHECK_S:
            self._checked_s = time.perf_counter()
            self._writer.check()
        return False

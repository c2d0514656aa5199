"""The system's own memory and CPUs as a device: copies are real copies, or direct reads from disk.

Its memory is limited to what it was given; a bandwidth cap stands for a link, and `probe` lets tests delay and fail.
"""

import mmap
import threading
from contextlib import suppress

import numpy as np

from localmoe.devices.copying import Copier, Probe
from localmoe.devices.device import Bytes, Flag, Urgency
from localmoe.devices.host_flag import HostFlag
from localmoe.devices.host_stream import HostEvent, HostStream
from localmoe.errors import DeviceLostError, OutOfMemoryError
from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES, MADV_POPULATE_WRITE

LOOK_S = 0.02  # how often whoever waits looks whether the device is lost
NUM_READERS = 8  # the disk works while pieces are put into place; 32 MiB of bounce buffers at most


class HostMemory:
    """Zeroed memory on pages of 2 MB, as far as the kernel finds them."""

    def __init__(self, device: "HostDevice", nbytes: int) -> None:
        mapping = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
            mapping.madvise(MADV_POPULATE_WRITE)  # now, not while a prompt waits; before Linux 5.14 it comes when used
        base = np.frombuffer(mapping, np.uint8)
        start = -base.ctypes.data % HUGE_PAGE_BYTES
        self.view: Bytes = base[start : start + nbytes]
        self._device = device
        self._nbytes = nbytes

    def free(self) -> None:
        """Gives it back to the device; the bytes go when the last view does."""
        self._device.give_back(self._nbytes)
        self._nbytes = 0
        self.view = self.view[:0]


class HostDevice:
    """device.Device. `capacity` and `cap` are in bytes and bytes per second; several may stand side by side."""

    def __init__(
        self,
        capacity: int,
        *,
        name: str = "host",
        num_readers: int = NUM_READERS,
        cap: float | None = None,
        probe: Probe = lambda kind: None,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.failure: Exception | None = None
        self._used = 0
        self._lock = threading.Lock()
        self._probe = probe
        self._copier = Copier(name, num_readers, cap, self._begins)
        self._streams: list[HostStream] = []

    @property
    def free_bytes(self) -> int:
        """As device.Device says."""
        return self.capacity - self._used

    @property
    def bandwidth(self) -> float | None:
        """As device.Device says."""
        return self._copier.rate

    def new_stream(self, name: str, *, urgency: Urgency = "bulk") -> HostStream:
        """As device.Device says; all are alike, since threads of the pool compute, and know what is urgent."""
        stream = HostStream(f"{self.name}-{name}", self._copier, self._begins, lambda: self.failure)
        self._streams.append(stream)
        return stream

    def new_event(self) -> HostEvent:
        """As device.Device says."""
        return HostEvent()

    def new_flag(self) -> HostFlag:
        """As device.Device says."""
        return HostFlag()

    def wait_here(self, flag: Flag, value: int) -> None:
        """As device.Device says: work is done when it is issued, so it waits."""
        while not flag.wait(value, LOOK_S):
            self._raise_if_lost()

    def alloc(self, nbytes: int) -> HostMemory:
        """As device.Device says."""
        self._raise_if_lost()
        with self._lock:
            if nbytes > self.free_bytes:
                raise OutOfMemoryError(
                    f"device {self.name} has {self.free_bytes / 1e6:,.1f} MB left of {self.capacity / 1e6:,.1f}; "
                    f"{nbytes / 1e6:,.1f} MB are needed.",
                    "give it more memory, or take fewer or smaller slots.",
                )
            self._used += nbytes
        try:
            return HostMemory(self, nbytes)
        except OSError as error:
            self.give_back(nbytes)
            raise OutOfMemoryError(f"the system gives no memory: {error}.", "close other programs.") from error

    def give_back(self, nbytes: int) -> None:
        """Of what was allocated."""
        with self._lock:
            self._used -= nbytes

    def register(self, memory: Bytes, *, pinned: bool, portable: bool) -> None:
        """Nothing to do: the CPU copies from any memory."""

    def lose(self, why: str) -> None:
        """The device is gone, for good: what is issued and under way fails with a DeviceLostError."""
        self.failure = self.failure or DeviceLostError(
            f"device {self.name} was lost: {why}.", "start again without it, or look at the system's log."
        )

    def close(self) -> None:
        """As device.Device says."""
        for stream in self._streams:
            stream.close()
        self._copier.close()

    def _begins(self, kind: str) -> None:
        self._probe(kind)
        self._raise_if_lost()

    def _raise_if_lost(self) -> None:
        if self.failure:
            raise self.failure

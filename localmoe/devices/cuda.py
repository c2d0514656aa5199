"""NVIDIA GPUs as devices, by torch.cuda and the driver (cuda_runtime, cuda_torch).

A failure of CUDA is the device's for good: its context takes no more work. Memory of the system is copied from where it
lies; page-locked, at the bus's full speed and beside everything else, and else by way of the driver's own buffers.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from localmoe.devices.copying import Copier
from localmoe.devices.cuda_copy import Bounce, LockedMemory, Meter
from localmoe.devices.cuda_event import Clock, CudaEvent, Point
from localmoe.devices.cuda_flag import CudaFlag
from localmoe.devices.cuda_runtime import Runtime
from localmoe.devices.cuda_stream import CudaStream
from localmoe.devices.device import Bytes, Flag, Urgency
from localmoe.errors import DeviceLostError, OutOfMemoryError

NUM_READERS = 4  # of files, each with a page-locked buffer

T = TypeVar("T")


class CudaMemory:
    """device.Memory: a tensor of bytes on the GPU."""

    def __init__(self, device: "CudaDevice", view: Any) -> None:
        self.view = view
        self._device = device
        self._nbytes = len(view)

    def free(self) -> None:
        """As device.Memory says; nothing may use it any more."""
        self.view = self.view.new_empty(0)
        self._device.give_back(self._nbytes)
        self._nbytes = 0


class CudaDevice:
    """device.Device. `capacity`: bytes that it may allocate; None: all that are free now.

    Devices that copy to each other are made by `open_devices`.
    """

    def __init__(self, runtime: Runtime, name: str, capacity: int | None = None) -> None:
        self.name = name
        self.runtime = runtime
        self.chip = runtime.name
        self.torch_name = runtime.torch_name
        free = runtime.free_bytes
        self.capacity = free if capacity is None else min(capacity, free)
        self.failure: Exception | None = None
        self.locked = LockedMemory()
        self.peers: Sequence[CudaDevice] = (self,)
        self.meter = Meter(runtime)
        self.bounce = Bounce(runtime)
        self.copier = Copier(name, NUM_READERS, None, lambda kind: None)
        self.clock = Clock(runtime)
        self._used = 0
        self._lock = threading.Lock()
        self._streams: list[CudaStream] = []
        self._registered: list[Bytes] = []  # kept, and unlocked in the end

    @property
    def free_bytes(self) -> int:
        """As device.Device says; less where others use the GPU too."""
        if self.failure:
            return 0
        return max(0, min(self.capacity - self._used, self.runtime.free_bytes))

    @property
    def bandwidth(self) -> float | None:
        """As device.Device says, by the GPU's own clock."""
        return None if self.failure else self.guard(lambda: self.meter.rate)

    def new_stream(self, name: str, *, urgency: Urgency = "bulk") -> CudaStream:
        """As device.Device says."""
        self._raise_if_lost()
        stream = self.guard(lambda: CudaStream(self, f"{self.name}-{name}", urgency=urgency))
        self._streams.append(stream)
        return stream

    def new_event(self) -> CudaEvent:
        """As device.Device says."""
        return CudaEvent(self.guard)

    def new_point(self) -> Point:
        """One time that an event is recorded."""
        return Point(self.runtime, self._raise_if_lost)

    def new_flag(self) -> CudaFlag:
        """As device.Device says."""
        return CudaFlag(self.runtime.new_word())

    def wait_here(self, flag: Flag, value: int) -> None:
        """As device.Device says."""
        assert isinstance(flag, CudaFlag), "a flag of another kind of device"
        self.guard(lambda: self.runtime.wait_word(self.runtime.current_stream(), flag.word, value))

    def alloc(self, nbytes: int) -> CudaMemory:
        """As device.Device says: zeros."""
        self._raise_if_lost()
        with self._lock:
            if nbytes > self.free_bytes:
                raise self._too_small(nbytes)
            self._used += nbytes
        try:
            return CudaMemory(self, self.guard(lambda: self.runtime.alloc(nbytes)))
        except MemoryError as error:
            self.give_back(nbytes)
            raise self._too_small(nbytes) from error

    def give_back(self, nbytes: int) -> None:
        """Of what was allocated."""
        with self._lock:
            self._used -= nbytes
        if self.failure is None:
            self.runtime.trim()

    def register(self, memory: Bytes, *, pinned: bool, portable: bool) -> None:
        """As device.Device says; OSError where the system or the driver refuses. Always for other GPUs too."""
        if pinned:
            self.lock(memory.ctypes.data, memory.nbytes)
            self._registered.append(memory)

    def lock(self, address: int, nbytes: int) -> None:
        """weights.page_lock.Register."""
        self.runtime.lock(address, nbytes)
        self.locked.add(address, nbytes)

    def unlock(self, address: int) -> None:
        """weights.page_lock.Unregister."""
        self.locked.remove(address)
        self.runtime.unlock(address)

    def pieces(self, target: Any, source: Any) -> Sequence[tuple[Any, Any]]:
        """A copy as parts that the GPU can do by itself, or the driver as wholes."""
        return self.locked.cut(target, source)

    def owner(self, tensor: Any) -> "CudaDevice | None":
        """The device that it lies on; None: in the system's memory."""
        return next((device for device in self.peers if device.runtime.owns(tensor)), None)

    def guard(self, call: Callable[[], T]) -> T:
        """What `call` gives; a failure of CUDA is the device's from then on, and raised as DeviceLostError."""
        try:
            return call()
        except Exception as error:
            if (told := self.translated(error)) is error:
                raise
            raise told from error

    def translated(self, error: Exception) -> Exception:
        """`error`, or what it means where it is CUDA's: the device is lost."""
        if why := self.runtime.why_lost(error):
            self.lose(why)
        return self.failure if why and self.failure else error

    def lose(self, why: str) -> None:
        """The device is gone, for good."""
        self.failure = self.failure or DeviceLostError(
            f"device {self.name} ({self.chip}) was lost: {why}.",
            "start localmoe again; the kernel's log (`sudo dmesg | grep -i xid`) tells whether the GPU failed.",
        )

    def close(self) -> None:
        """As device.Device says."""
        for stream in self._streams:
            stream.close()
        self.copier.close()
        while self._registered:
            with suppress(OSError, RuntimeError):  # a driver that has failed has let go of it
                self.unlock(self._registered.pop().ctypes.data)

    def _too_small(self, nbytes: int) -> OutOfMemoryError:
        free = self.free_bytes
        return OutOfMemoryError(
            f"{self.name} ({self.chip}) has {free / 1e6:,.1f} MB left of {self.capacity / 1e6:,.1f}; "
            f"{nbytes / 1e6:,.1f} MB are needed.",
            "close other programs on the GPU, or choose a shorter --context or --plan cpu.",
            nbytes - free,
        )

    def _raise_if_lost(self) -> None:
        if self.failure:
            raise self.failure


def connect(devices: Sequence[CudaDevice], locked: LockedMemory | None = None) -> None:
    """Lets them copy from each other, and from what any of them, or of those with `locked` before, has page-locked."""
    locked = locked or LockedMemory()
    for device in devices:
        device.peers = tuple(devices)
        device.locked = locked


def open_devices(indices: Sequence[int], names: Sequence[str], locked: LockedMemory | None = None) -> list[CudaDevice]:
    """GPUs by CUDA's numbers; `names` are what people know them by. `locked`: by devices that were opened before."""
    import torch

    from localmoe.devices.cuda_torch import TorchRuntime

    torch.set_num_threads(1)  # the cores are the pool's
    devices = [CudaDevice(TorchRuntime(index), name) for index, name in zip(indices, names, strict=True)]
    connect(devices, locked)
    return devices

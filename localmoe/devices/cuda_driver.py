"""Calls of NVIDIA's driver that torch does not have, from its library: page-locking, and words that streams wait for.

The runtime's cudaHostRegister would do as well, but leaves its error behind for torch's next launch to raise.
"""

import ctypes
import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "libcuda.so.1"
PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: for all GPUs
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
IN_ORDER = 0  # CU_STREAM_WRITE_VALUE_DEFAULT: what the stream wrote before is seen first
OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801
LOOK_S = 50e-6

_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DriverError(RuntimeError):
    """A call that failed."""

    def __init__(self, call: str, code: int, why: str) -> None:
        super().__init__(f"{call}: {why}")
        self.code = code
        self.why = why


class Driver:
    """The driver with the context that torch uses of GPU `index`, as CUDA counts. `library` may be a stand-in."""

    def __init__(self, index: int, library: Any = None) -> None:
        self._library = library or ctypes.CDLL(LIBRARY)
        self._callbacks: dict[int, Any] = {}  # kept alive until they were called
        self._num_callbacks = 0
        self._has_words = True  # until the driver says that it has not
        self._call("cuInit", ctypes.c_uint(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory for all GPUs; OSError with the driver's reason."""
        try:
            with self._current():
                self._call("cuMemHostRegister_v2", _pointer(address), ctypes.c_size_t(nbytes), ctypes.c_uint(PORTABLE))
        except DriverError as error:
            raise OSError(errno.ENOMEM if error.code == OUT_OF_MEMORY else errno.EIO, error.why) from error

    def unlock(self, address: int) -> None:
        """Lets go of what was locked from `address` on; OSError where the driver does not."""
        try:
            with self._current():
                self._call("cuMemHostUnregister", _pointer(address))
        except DriverError as error:
            raise OSError(errno.EIO, error.why) from error

    def write_word(self, stream: int, address: int, value: int) -> None:
        """`stream` writes the 32-bit word once all before is done."""

        def write() -> None:
            ctypes.c_uint32.from_address(address).value = value

        if not self._on_word("cuStreamWriteValue32_v2", stream, address, value, IN_ORDER):
            self._call_host(stream, write)

    def wait_word(self, stream: int, address: int, value: int) -> None:
        """`stream` waits until the word is at least `value`."""

        def wait() -> None:
            while ctypes.c_uint32.from_address(address).value < value:
                time.sleep(LOOK_S)

        if not self._on_word("cuStreamWaitValue32_v2", stream, address, value, AT_LEAST):
            self._call_host(stream, wait)

    def _on_word(self, call: str, stream: int, address: int, value: int, flags: int) -> bool:
        """False where this driver has no such calls (WSL), so that host functions do it."""
        if not self._has_words:
            return False
        try:
            with self._current():
                mapped = ctypes.c_uint64()
                self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), _pointer(address), ctypes.c_uint(0))
                self._call(call, _pointer(stream), mapped, ctypes.c_uint32(value), ctypes.c_uint(flags))
        except DriverError as error:
            if error.code != NOT_SUPPORTED:
                raise
            self._has_words = False
        return self._has_words

    def _call_host(self, stream: int, work: Callable[[], None]) -> None:
        """`work`, which may not use CUDA, runs in a thread of the driver's when `stream` gets there."""
        self._num_callbacks += 1
        number = self._num_callbacks

        def call(_: int) -> None:
            work()
            self._callbacks.pop(number)

        self._callbacks[number] = _HostFunction(call)
        with self._current():
            self._call("cuLaunchHostFunc", _pointer(stream), self._callbacks[number], None)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The context is this thread's, and afterwards what it was before."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *args: Any) -> None:
        code = int(getattr(self._library, name)(*args))
        if code:
            why = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(why))
            raise DriverError(name, code, why.value.decode() if why.value else f"error {code}")


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)

"""Calls of the driver that torch does not have, on a stand-in for its library."""

import ctypes
import threading

import numpy as np
import pytest

from localmoe.devices.cuda_driver import NOT_SUPPORTED, OUT_OF_MEMORY, Driver, DriverError


class Library:
    """libcuda: notes calls, keeps a stack of contexts, and fails as told."""

    def __init__(self, **codes):
        self.codes = codes
        self.calls = []
        self.contexts = []

    def __getattr__(self, name):
        def call(*args):
            values = [getattr(a, "value", a) for a in args]
            if name == "cuCtxPushCurrent_v2":
                self.contexts.append(values[0])
            elif name == "cuCtxPopCurrent_v2":
                self.contexts.pop()
            elif name == "cuDevicePrimaryCtxRetain":
                args[0]._obj.value = 77
            elif name == "cuMemHostGetDevicePointer_v2":
                args[0]._obj.value = args[1].value + 1
            elif name == "cuGetErrorString":
                args[1]._obj.value = b"said the driver"
            elif name == "cuLaunchHostFunc":
                threading.Thread(target=args[1], args=(None,)).start()
            self.calls.append((name, values, list(self.contexts)))
            return self.codes.get(name, 0)

        return call

    def named(self, name):
        return [(values, contexts) for n, values, contexts in self.calls if n == name]


def test_memory_is_locked_for_all_gpus_in_torchs_context():
    library = Library()
    driver = Driver(1, library)
    driver.lock(4096, 100)
    driver.unlock(4096)
    assert library.named("cuDeviceGet")[0][0][1] == 1
    assert library.named("cuMemHostRegister_v2") == [([4096, 100, 1], [77])]
    assert library.named("cuMemHostUnregister") == [([4096], [77])]
    assert library.contexts == []  # as it was before


@pytest.mark.parametrize(("code", "number"), [(OUT_OF_MEMORY, 12), (1, 5)])
def test_a_refusal_is_an_os_error_with_the_drivers_words(code, number):
    library = Library(cuMemHostRegister_v2=code)
    with pytest.raises(OSError, match="said the driver") as refused:
        Driver(0, library).lock(0, 4096)
    assert refused.value.errno == number and library.contexts == []


def test_streams_write_and_wait_for_words_at_the_gpus_address():
    library = Library()
    driver = Driver(0, library)
    driver.write_word(5, 64, 3)
    driver.wait_word(5, 64, 4)
    assert library.named("cuStreamWriteValue32_v2") == [([5, 65, 3, 0], [77])]
    assert library.named("cuStreamWaitValue32_v2") == [([5, 65, 4, 0], [77])]


def test_where_the_driver_has_no_words_host_functions_write_and_wait():
    word = np.zeros(16, np.uint32)
    library = Library(cuStreamWriteValue32_v2=NOT_SUPPORTED)
    driver = Driver(0, library)
    driver.wait_word(5, word.ctypes.data, 0)
    assert not library.named("cuLaunchHostFunc")
    driver.write_word(5, word.ctypes.data, 9)
    assert _within(lambda: word[0] == 9)
    driver.wait_word(5, word.ctypes.data, 10)
    assert len(library.named("cuStreamWaitValue32_v2")) == 1  # it is not asked again
    assert driver._callbacks
    word[0] = 11
    assert _within(lambda: not driver._callbacks)  # the wait is over, and nothing of it is kept


def test_other_failures_are_raised():
    driver = Driver(0, Library(cuStreamWriteValue32_v2=700))
    with pytest.raises(DriverError, match="cuStreamWriteValue32_v2: said the driver"):
        driver.write_word(5, 64, 3)


def test_the_signatures_are_those_of_the_header():
    """ctypes passes what it is given: 64-bit addresses as such, never cut to an int."""
    library = Library()
    Driver(0, library).lock(1 << 40, 1 << 33)
    assert library.named("cuMemHostRegister_v2")[0][0] == [1 << 40, 1 << 33, 1]
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def _within(is_true, seconds=5.0):
    waited = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if is_true():
            return True
        waited.wait(0.01)
    return False

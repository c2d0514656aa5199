"""A GPU made of threads: devices.cuda_runtime.Runtime on the system's memory, as late and as ordered as CUDA."""

import errno
import threading
import time
import weakref
from collections import deque

import numpy as np
import torch

PATIENCE_S = 20


class GpuError(RuntimeError):
    """What CUDA would fail with."""


class Event:
    def __init__(self):
        self.reached = threading.Event()
        self.reached.set()  # one that never was recorded holds nobody up
        self.time_s = 0.0


class Word:
    def __init__(self):
        self.memory = np.zeros(1, np.int32)

    @property
    def value(self):
        return int(self.memory[0])

    @value.setter
    def value(self, value):
        self.memory[0] = value


class Stream:
    """Does what it is given in a thread of its own."""

    def __init__(self, runtime):
        self.queue = deque()
        self.change = threading.Condition()
        self.state = {"busy": False}
        args = self.queue, self.change, self.state, weakref.ref(runtime)  # the thread keeps nothing else alive
        threading.Thread(target=_run, args=args, daemon=True).start()

    def give(self, work):
        with self.change:
            self.queue.append(work)
            self.change.notify_all()

    def synchronize(self):
        with self.change:
            assert self.change.wait_for(lambda: not self.queue and not self.state["busy"], PATIENCE_S), "the GPU hangs"


def _run(queue, change, state, runtime):
    while True:
        with change:
            change.wait_for(lambda: queue)
            work, state["busy"] = queue.popleft(), True
        if (gpu := runtime()) and gpu.error is None:
            work()
        del work, gpu  # and what they keep alive
        with change:
            state["busy"] = False
            change.notify_all()


class ThreadRuntime:
    """`peers`: runtimes that it reaches by itself. `lockable`: bytes that may be page-locked.

    What is issued runs late, as kernels do; unless `late`, the call that issues it waits, and raises what it raises.
    """

    turn = threading.Lock()  # what works for kernels, such as Triton's interpreter, may be made for one thread

    def __init__(self, free_bytes=64 << 20, name="stand-in", lockable=1 << 40, late=True):
        self.late = late
        self._issues = threading.local()  # whose work a thread does
        self.torch_name = "cpu"
        self.name = name
        self.total_bytes = free_bytes
        self.lockable = lockable
        self.locked = {}
        self.peers = []
        self.error = None
        self.copies = []  # (bytes, whether from memory that is locked as a whole)
        self._memory = weakref.WeakValueDictionary()  # arrays by address

    @property
    def free_bytes(self):
        return self.total_bytes - sum(memory.nbytes for memory in self._memory.values())

    def alloc(self, nbytes):
        self._check()
        if nbytes > self.free_bytes:
            raise MemoryError("CUDA out of memory")
        memory = np.zeros(nbytes, np.uint8)
        self._memory[memory.ctypes.data] = memory
        return torch.from_numpy(memory)

    def trim(self):
        pass

    def host_alloc(self, nbytes):
        return torch.empty(nbytes, dtype=torch.uint8)

    def lock(self, address, nbytes):
        if nbytes > self.lockable:
            raise OSError(errno.ENOMEM, "out of memory")
        self.lockable -= nbytes
        self.locked[address] = nbytes

    def unlock(self, address):
        self.lockable += self.locked.pop(address)

    def new_stream(self, *, urgency="bulk"):
        return Stream(self)

    def new_event(self):
        return Event()

    def current_stream(self):
        return self._issues.stream

    def issue(self, stream, work):
        self._check()

        def issued():
            self._issues.stream = stream
            work()

        if self.late:
            stream.give(issued)
        else:
            stream.synchronize()
            with self.turn:
                issued()

    def copy(self, stream, target, source):
        self._check()
        start, size = source.data_ptr(), len(source)
        touched = [a for a, n in self.locked.items() if a < start + size and start < a + n]
        whole = any(a <= start and start + size <= a + self.locked[a] for a in touched)
        assert whole or not touched, "a copy across the edge of locked memory"
        self.copies.append((size, whole))
        stream.give(lambda: target.copy_(source))

    def record(self, stream, event):
        self._check()
        event.reached = reached = threading.Event()

        def reach():
            event.time_s = time.perf_counter()
            reached.set()

        stream.give(reach)

    def wait(self, stream, event):
        reached = event.reached
        stream.give(lambda: reached.wait(PATIENCE_S))

    def reached(self, event):
        self._check()
        return event.reached.is_set()

    def seconds(self, first, last):
        return last.time_s - first.time_s

    def synchronize(self, stream):
        stream.synchronize()
        self._check()

    def check(self):
        self._check()

    def new_word(self):
        return Word()

    def write_word(self, stream, word, value):
        def write():
            word.value = value

        stream.give(write)

    def wait_word(self, stream, word, value):
        def wait():
            while word.value < value:
                time.sleep(1e-4)

        stream.give(wait)

    def owns(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._memory

    def reaches(self, other):
        return other in self.peers

    def why_lost(self, error):
        return str(error) if isinstance(error, GpuError) else ""

    def fail(self, why):
        """The GPU fails, as CUDA has it: what is under way stops, and every later call tells."""
        self.error = GpuError(why)

    def _check(self):
        if self.error:
            raise self.error

"""Streams of CUDA devices.

What is given to a stream is issued to CUDA at once, in the thread that gives it. Only behind a copy from files, which
threads of the host carry out, things wait for their turn, and a thread of the stream's own issues them.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localmoe.devices.copying import Copy, cancelled
from localmoe.devices.cuda_copy import BouncedStep, as_bytes
from localmoe.devices.cuda_event import CudaEvent, Point
from localmoe.devices.cuda_flag import CudaFlag
from localmoe.devices.cuda_peer import Relay
from localmoe.devices.device import Event, Flag, Step, Urgency

if TYPE_CHECKING:
    from localmoe.devices.cuda import CudaDevice

LOOK_S = 0.02  # how often a thread that waits looks whether it is wanted still


@dataclass
class _Item:
    """Something in the stream's order: `do` it, or `drop` it. Until `is_ready` its turn has not come."""

    do: Callable[[], None]
    drop: Callable[[BaseException], None] = lambda error: None
    is_ready: Callable[[], bool] = lambda: True


class CudaStream:
    """device.Stream. After a failure it does nothing more until it is reset."""

    def __init__(self, device: "CudaDevice", name: str, *, urgency: Urgency = "bulk") -> None:
        self._device = device
        self._name = name
        self._runtime = device.runtime
        self._stream = self._runtime.new_stream(urgency=urgency)
        self._queue: deque[_Item] = deque()
        self._current: _Item | None = None  # in the stream's thread
        self._error: BaseException | None = None
        self._waits: list[tuple[CudaFlag, int]] = []
        self._relays: dict[int, Relay] = {}
        self._closed = False
        self._change = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    @property
    def handle(self) -> Any:
        """The runtime's."""
        return self._stream

    def launch(self, work: Callable[[], None]) -> None:
        """As device.Stream says: `work` issues kernels to what is the current stream for it."""
        self._issue(_Item(lambda: self._runtime.issue(self._stream, work)))

    def copy_async(self, target: Any, source: Any | Sequence[Step]) -> None:
        """As device.Stream says; memory may be the GPU's, as tensors, or the system's, as arrays."""
        if isinstance(source, (list, tuple)):
            self._issue(self._copy_of_steps(source))
            return
        pairs = self._device.pieces(as_bytes(target), as_bytes(source))
        self._issue(_Item(lambda: self._copy(pairs)))

    def peer_copy(self, target: Any, source: Any) -> None:
        """As device.Stream says."""
        self._issue(_Item(lambda: self._copy_rows(as_bytes(target), as_bytes(source))))

    def wait(self, event: Event) -> None:
        """As device.Stream says."""
        assert isinstance(event, CudaEvent), "an event of another kind of device"
        if event.point is not None:
            self._issue(self._wait_for(event.point))

    def record(self, event: Event) -> None:
        """As device.Stream says."""
        assert isinstance(event, CudaEvent), "an event of another kind of device"
        point = event.point = self._device.new_point()

        def record() -> None:
            point.origin = self._device.clock.origin()
            self._runtime.record(self._stream, point.handle)
            point.issue(None)

        self._issue(_Item(record, point.issue))

    def write_flag(self, flag: Flag, value: int) -> None:
        """As device.Stream says."""
        assert isinstance(flag, CudaFlag), "a flag of another kind of device"
        flag.expect(self)
        self._issue(_Item(lambda: self._runtime.write_word(self._stream, flag.word, value), flag.fail))

    def wait_flag(self, flag: Flag, value: int) -> None:
        """As device.Stream says. It fails with the stream that was to write the flag, where that has failed before."""
        assert isinstance(flag, CudaFlag), "a flag of another kind of device"

        def wait() -> None:
            if flag.error and flag.value < value:
                raise flag.error
            self._waits = [(f, v) for f, v in self._waits if f.value < v] + [(flag, value)]
            self._runtime.wait_word(self._stream, flag.word, value)

        self._issue(_Item(wait))

    def check(self) -> None:
        """Raises what the GPU has failed with."""
        self._device.guard(self._runtime.check)

    def reset(self) -> None:
        """As device.Stream says. What CUDA has been given already is waited for."""
        error = cancelled()
        with self._change:
            self._error = self._error or error
            for item in (*self._queue, self._current):
                if item is not None:
                    item.drop(error)
            self._change.wait_for(lambda: not self._queue and self._current is None)
            for flag, value in self._waits:
                flag.release(value)
            self._waits = []
            self._settle()
            self._error = None

    def close(self) -> None:
        """Ends its thread."""
        self.reset()
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread:
            self._thread.join()

    def _settle(self) -> None:
        """A lost device has nothing under way."""
        if self._device.failure is None:
            try:
                self._runtime.synchronize(self._stream)
            except Exception as error:  # noqa: BLE001 - kept by the device
                self._device.translated(error)

    def _issue(self, item: _Item) -> None:
        with self._change:
            assert not self._closed, "the stream is closed"
            if not self._queue and self._current is None and item.is_ready():
                self._do(item)
                return
            self._queue.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"localmoe-{self._name}", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def _do(self, item: _Item) -> None:
        error = self._error or self._device.failure
        if error is None:
            try:
                item.do()
                return
            except Exception as failed:  # noqa: BLE001 - carried by the events behind it
                error = self._device.translated(failed)
        item.drop(error)
        self._error = self._error or error

    def _run(self) -> None:
        while item := self._next():
            self._do(item)
            with self._change:
                self._current = None
                self._change.notify_all()

    def _next(self) -> _Item | None:
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed)
            self._current = self._queue.popleft() if self._queue else None
            return self._current

    def _copy(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        with self._device.meter.measured(self._stream, sum(len(source) for _, source in pairs), pairs):
            for target, source in pairs:
                self._runtime.copy(self._stream, target, source)

    def _copy_rows(self, target: Any, source: Any) -> None:
        """Within the device, from or to the system's memory, or from another device."""
        other = self._device.owner(source)
        if other is None or other is self._device or self._device.owner(target) is None:
            self._runtime.copy(self._stream, target, source)
        else:
            relay = self._relays.setdefault(id(other), Relay(self._runtime, other.runtime))
            relay.copy(self._stream, target, source)

    def _copy_of_steps(self, steps: Sequence[Step]) -> _Item:
        copy = Copy([BouncedStep(step, self._device.bounce, self._runtime, self._stream) for step in steps])

        def carry_out() -> None:
            self._device.copier.submit(copy)
            copy.over.wait()
            if copy.error:
                raise copy.error

        return _Item(carry_out, copy.cancel, is_ready=lambda: not steps)

    def _wait_for(self, point: Point) -> _Item:
        dropped = threading.Event()

        def wait() -> None:
            while not point.issued.wait(LOOK_S):
                if dropped.is_set():
                    raise cancelled()
            if point.error:
                raise point.error
            self._runtime.wait(self._stream, point.handle)

        return _Item(wait, lambda error: dropped.set(), point.issued.is_set)

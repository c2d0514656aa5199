"""One prompt's way through the pipeline: how it ends, and how its actors wait for each other."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from localmoe.devices.device import Event
from localmoe.model.network import new_flag

LOOK_S = 0.02  # how often whoever waits looks whether the job goes on

T = TypeVar("T")


class StoppedError(Exception):
    """Ends an actor of a job that has failed, or that was cancelled."""


class Job:
    """The first failure ends it; `flag` tells native code. Everything that blocks does so through its methods."""

    def __init__(self, num_devices: int) -> None:
        self.error: BaseException | None = None
        self.flag = new_flag()
        self.over = threading.Event()  # no actor is at work any more
        self._num_actors = 0
        self._meeting = threading.Barrier(num_devices)
        self._lock = threading.Lock()

    def fail(self, error: BaseException) -> None:
        """Ends the job; only the first reason counts."""
        with self._lock:
            self.error = self.error or error
        self.flag.set()
        self._meeting.abort()

    def start(self, actors: list[tuple[str, Callable[[], None]]]) -> None:
        """Sets each to work on a thread of its own."""
        self._num_actors = len(actors)
        for name, work in actors:
            threading.Thread(target=self._act, args=(work,), name=f"localmoe-{name}", daemon=True).start()

    def get(self, waiting: "queue.SimpleQueue[T]") -> T:
        """The next of `waiting`; StoppedError when the job ends before there is one."""
        while True:
            self._look()
            try:
                return waiting.get(timeout=LOOK_S)
            except queue.Empty:
                continue

    def wait(self, event: "Event | threading.Event") -> None:
        """Until it is reached. Raises what the work before it failed with, or StoppedError."""
        while not event.wait(LOOK_S):
            self._look()

    def meet(self) -> None:
        """Until every device's model is here."""
        try:
            self._meeting.wait()
        except threading.BrokenBarrierError as error:
            raise StoppedError from error

    def _look(self) -> None:
        if self.error:
            raise StoppedError

    def _act(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever waits for the job raises it
            self.fail(error)
        with self._lock:
            self._num_actors -= 1
            if not self._num_actors:
                self.over.set()

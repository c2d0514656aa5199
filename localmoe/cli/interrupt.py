"""Ctrl+C: the first one stops what runs and keeps what there is, the second one leaves at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import Any, Protocol

from localmoe.cli.report import INTERRUPTED


class Cancellable(Protocol):
    """What can be asked to stop: an answer, a pull."""

    def cancel(self) -> None: ...


class Interrupts:
    """While entered, SIGINT is noted, and cancels what is being followed."""

    def __init__(self) -> None:
        self.any = False
        self._handle: Cancellable | None = None

    def __enter__(self) -> "Interrupts":
        self._before: Any = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def cancelling(self, handle: Cancellable) -> Iterator[None]:
        """Within, an interrupt asks `handle` to stop, also one that came before; its partial answer still comes."""
        self._handle = handle
        if self.any:
            handle.cancel()
        try:
            yield
        finally:
            self._handle = None

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.any:
            os._exit(INTERRUPTED)
        self.any = True
        if self._handle is not None:
            # In a thread: the code that this handler interrupted may hold the very lock that cancel needs.
            Thread(target=self._handle.cancel, daemon=True).start()

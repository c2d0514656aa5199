"""Ctrl+C: the first one stops what runs and keeps what there is, the second one leaves at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import Any

from localmoe.cli.report import INTERRUPTED
from localmoe.engine.request import Handle


class Interrupts:
    """While entered, SIGINT raises KeyboardInterrupt, or cancels the handle that is being followed."""

    def __init__(self) -> None:
        self._handle: Handle | None = None
        self._count = 0

    def __enter__(self) -> "Interrupts":
        self._before: Any = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def cancelling(self, handle: Handle) -> Iterator[None]:
        """Within, an interrupt asks `handle` to stop; its partial answer still comes."""
        self._handle = handle
        try:
            yield
        finally:
            self._handle = None

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(INTERRUPTED)
        if self._handle is None:
            raise KeyboardInterrupt
        # In a thread: the code that this handler interrupted may hold the very lock that cancel needs.
        Thread(target=self._handle.cancel, daemon=True).start()

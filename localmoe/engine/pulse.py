"""A beat beside a long native call: what the caller would say if it were not waiting."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Thread

BEAT_S = 0.25


class Pulse:
    """A thread that calls one function four times a second while something runs, and never after."""

    def __init__(self) -> None:
        self._beat: Callable[[], None] | None = None
        self._changed = Condition()  # held while the function runs
        self._closed = False
        self._thread = Thread(target=self._work, name="localmoe-pulse", daemon=True)
        self._thread.start()

    @contextmanager
    def beating(self, beat: Callable[[], None]) -> Iterator[None]:
        """Calls `beat` meanwhile, first after BEAT_S. It must not raise."""
        self._set(beat)
        try:
            yield
        finally:
            self._set(None)

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _set(self, beat: Callable[[], None] | None) -> None:
        with self._changed:
            self._beat = beat
            self._changed.notify()

    def _work(self) -> None:
        with self._changed:
            while not self._closed:
                beat = self._beat
                if not self._changed.wait(BEAT_S if beat else None) and beat is self._beat and beat:
                    beat()

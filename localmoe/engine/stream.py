"""The events of one request on their way from the engine's thread to whoever listens."""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition

from localmoe.events import Event, Failed, Finished


class EventStream:
    """A handle: filled by one thread, read by another. Nothing follows Finished or Failed."""

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self._on_cancel = on_cancel
        self._events: deque[Event] = deque()
        self._changed = Condition()
        self._ended = False

    def put(self, *events: Event) -> None:
        """Adds `events`, the last of a stream alone; does nothing once the stream has ended."""
        with self._changed:
            if self._ended:
                return
            self._events.extend(events)
            self._ended = isinstance(events[-1], Finished | Failed)
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether the last event was put."""
        return self._ended

    def wait_ended(self, limit_s: float) -> bool:
        """Waits until the last event was put; False when `limit_s` was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, limit_s)

    def events(self) -> Iterator[Event]:
        """Blocks for each next event; ends after Finished or Failed."""
        while (event := self._next()) is not None:
            yield event

    def cancel(self) -> None:
        """Asks the engine to stop; harmless when it has."""
        if not self._ended:
            self._on_cancel()

    def _next(self) -> Event | None:
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._ended)
            return self._events.popleft() if self._events else None

"""What waits to be sent to one visitor: whoever puts something in never waits for who takes it out."""

from threading import Condition
from typing import Any

from localmoe.events import Event, encode, merge

MAX_REPLIES = 256
MAX_EVENTS = 256

Message = dict[str, Any]


class Outbox:
    """How far opening is, replies in their order, then the events of each request.

    Of a request whose events nobody takes, they are merged: what waits has a bound.
    """

    def __init__(self) -> None:
        self._state: list[Message] = []
        self._replies: list[Message] = []
        self._events: dict[int, list[Event]] = {}
        self._changed = Condition()
        self._closed = False

    def state(self, message: Message) -> None:
        """Adds `message` instead of the last one of its kind."""
        with self._changed:
            self._state = [message]
            self._changed.notify()

    def reply(self, message: Message) -> bool:
        """Adds `message`; False when too many wait already."""
        with self._changed:
            if len(self._replies) >= MAX_REPLIES:
                return False
            self._replies.append(message)
            self._changed.notify()
        return True

    def event(self, number: int, event: Event) -> None:
        """Adds an event of the request of that number."""
        with self._changed:
            waiting = self._events.setdefault(number, [])
            if len(waiting) < MAX_EVENTS:
                waiting.append(event)
            else:
                merge(waiting, event)
            self._changed.notify()

    def close(self) -> None:
        """Nobody takes anything any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, limit_s: float) -> list[Message] | None:
        """All that waits, as soon as something does; empty after `limit_s`, None once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._state or self._replies or self._events or self._closed, limit_s)
            if self._closed:
                return None
            replies, self._state, self._replies = [*self._state, *self._replies], [], []
            events, self._events = self._events, {}
        told = [{"of": number, **encode(event)} for number, waiting in events.items() for event in waiting]
        return [*replies, *told]

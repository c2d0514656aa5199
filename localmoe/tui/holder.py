"""The engine of a chat program: opened in a thread, told to all who listen, closed once."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, Thread

from localmoe.engine.request import EngineFace, EngineInfo
from localmoe.errors import CancelledError, LocalmoeError
from localmoe.events import Event, Failed, Loading, Lost

OpenEngine = Callable[[Callable[[Event], None]], EngineFace]
Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Opened(Event):
    """The engine is there, and this is what it runs."""

    info: EngineInfo


class EngineHolder:
    """One engine for all conversations of this program. What it tells is told to each listener."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self.engine: EngineFace | None = None
        self._open_engine = open_engine
        self._lock = Lock()  # guards what follows
        self._listeners: list[Listener] = []
        self._last: Event | None = None  # what who comes later must know
        self._thread: Thread | None = None
        self._closing = False

    def listen(self, listener: Listener) -> None:
        """From now on `listener` hears what is told; at once how far the engine is."""
        with self._lock:
            self._listeners.append(listener)
            if self._last:
                listener(self._last)

    def leave(self, listener: Listener) -> None:
        """`listener` hears no more."""
        with self._lock:
            self._listeners.remove(listener)

    def open(self) -> None:
        """Starts opening, or opening again, unless that is done; ends with `engine` set, or with Failed."""
        with self._lock:
            is_opening = self._thread is not None and self._thread.is_alive()
            if not (self._closing or is_opening or isinstance(self._last, Opened)):
                self._start(self._open_engine)

    def change(self, open_engine: OpenEngine) -> None:
        """Opens another engine once what is open is closed, or an opening has ended early: both may not fit."""
        with self._lock:
            self._open_engine, self._last = open_engine, None
            if not self._closing:
                self._start(open_engine)

    def _start(self, open_engine: OpenEngine) -> None:
        before = self._thread
        self._thread = Thread(target=lambda: self._open(open_engine, before), name="open-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the engine, one that is still being opened as soon as it can be. May take its time."""
        self._closing = True
        if self._thread:
            self._thread.join()
        if self.engine:
            self.engine.close()
            self.engine = None

    def refuse(self) -> None:
        """Ends an opening at its next step; nothing is opened any more."""
        self._closing = True

    def _open(self, open_engine: OpenEngine, before: Thread | None) -> None:
        def report(event: Event) -> None:
            if not self._is_wanted(open_engine):
                raise CancelledError("another model is wanted, or none any more")
            self._tell(event)

        try:
            if before:
                before.join()
            if gone := self.engine:
                self.engine = None
                gone.close()
            if self._is_wanted(open_engine):
                self.engine = engine = open_engine(report)
                report(Opened(engine.info))
        except CancelledError:
            pass
        except LocalmoeError as error:
            self._tell_end(open_engine, Failed.of(error))
        except Exception as error:  # noqa: BLE001 - a bug below must be seen, not end the screen
            self._tell_end(open_engine, bug("opening the model failed", error))

    def _is_wanted(self, open_engine: OpenEngine) -> bool:
        return not self._closing and open_engine is self._open_engine

    def _tell_end(self, open_engine: OpenEngine, failed: Failed) -> None:
        if self._is_wanted(open_engine):
            self._tell(failed)

    def _tell(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Opened | Loading | Failed | Lost):
                self._last = event
            for listener in self._listeners:
                listener(event)


def bug(what: str, error: Exception) -> Failed:
    """What to show of an error that is ours."""
    return Failed(f"{what}: {type(error).__name__}: {error}", "this is a fault in localmoe: please report it")

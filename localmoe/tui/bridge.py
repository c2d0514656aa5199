"""Between the engine's threads and the screen: events wait here, merged, until the screen takes them.

The engine's side never waits for the screen, and the screen never for the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock, Thread
from time import monotonic

from localmoe.engine.request import EngineFace, EngineInfo, Handle, Request
from localmoe.errors import CancelledError, LocalmoeError
from localmoe.events import Event, Failed, Loading, PrefillProgress, Queued, TextDelta

OpenEngine = Callable[[Callable[[Event], None]], EngineFace]
CLOSE_WAIT_S = 2.0
_LATEST_ONLY = (Loading, Queued, PrefillProgress)


@dataclass(frozen=True, slots=True)
class Opened(Event):
    """The engine is there, and this is what it runs."""

    info: EngineInfo


class Bridge:
    """Opens the engine, hands it requests and keeps what it says."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self.engine: EngineFace | None = None
        self._open_engine = open_engine
        self._handle: Handle | None = None
        self._events: list[Event] = []
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._is_stopped = False
        self._closing = False

    def open(self) -> None:
        """Starts opening; ends with `engine` set, or with Failed among the events."""
        self._start(self._open, "open-engine")

    def ask(self, request: Request) -> None:
        """Submits `request`; what is wrong with it comes as Failed, like everything else."""
        self._handle, self._is_stopped = None, False
        self._start(lambda: self._ask(request), "ask")

    def stop(self) -> None:
        """Cancels what is being answered."""
        self._is_stopped = True
        if self._handle:
            self._handle.cancel()

    def take(self) -> list[Event]:
        """What came since the last time, in order."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Stops everything and gives the engine a bounded time to end."""
        self._closing = True
        self.stop()
        self._start(self._close_engine, "close-engine")
        deadline = monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=work, name=name, daemon=True)  # a stuck engine must not keep the program
        self._threads.append(thread)
        thread.start()

    def _open(self) -> None:
        try:
            self.engine = self._open_engine(self._report)
            self._put(Opened(self.engine.info))
        except CancelledError:
            pass
        except LocalmoeError as error:
            self._put(Failed.of(error))
        except Exception as error:  # noqa: BLE001 - a bug below must be seen, not end the screen
            self._put(_bug("opening the model failed", error))

    def _ask(self, request: Request) -> None:
        assert self.engine is not None
        try:
            self._handle = handle = self.engine.submit(
                request
            )  # renders the whole conversation: not for the screen's thread
            if self._is_stopped:
                handle.cancel()
            for event in handle.events():
                self._put(event)
        except LocalmoeError as error:
            self._put(Failed.of(error))
        except Exception as error:  # noqa: BLE001 - as above
            self._put(_bug("the engine broke off", error))

    def _close_engine(self) -> None:
        for thread in self._threads:
            if thread.name == "open-engine":
                thread.join()  # an engine that is still being opened is closed as soon as it can be
        if self.engine:
            self.engine.close()
            self.engine = None

    def _report(self, event: Event) -> None:
        if self._closing:
            raise CancelledError("the chat was left")
        self._put(event)

    def _put(self, event: Event) -> None:
        with self._lock:
            merge(self._events, event)


def merge(events: list[Event], event: Event) -> None:
    """Adds `event`: text joins the text before it, progress replaces its elder."""
    last = events[-1] if events else None
    if isinstance(event, TextDelta) and isinstance(last, TextDelta) and last.channel == event.channel:
        events[-1] = replace(last, text=last.text + event.text)
    elif isinstance(event, _LATEST_ONLY):
        events[:] = [old for old in events if type(old) is not type(event)]
        events.append(event)
    else:
        events.append(event)


def _bug(what: str, error: Exception) -> Failed:
    return Failed(f"{what}: {type(error).__name__}: {error}", "this is a fault in localmoe: please report it")

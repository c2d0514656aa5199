"""Between the engine's threads and one conversation: events wait here, merged, until the screen takes them.

The engine's side never waits for the screen, and the screen never for the engine.
"""

from collections.abc import Callable
from threading import Lock, Thread
from time import monotonic

from localmoe.chat.message import Conversation
from localmoe.engine.request import EngineFace, Handle, Request
from localmoe.errors import LocalmoeError
from localmoe.events import Event, Failed, Lost, merge
from localmoe.tui.holder import EngineHolder, Opened, OpenEngine, bug

__all__ = ["Bridge", "OpenEngine", "Opened", "merge"]

CLOSE_WAIT_S = 2.0


class Bridge:
    """Opens the engine, hands it the requests of one conversation and keeps what it says."""

    def __init__(self, open_engine: OpenEngine | EngineHolder) -> None:
        self._holder = open_engine if isinstance(open_engine, EngineHolder) else EngineHolder(open_engine)
        self._handle: Handle | None = None
        self._events: list[Event] = []
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._is_stopped = False
        self._is_asking = False
        self._lost: Event | None = None  # told once the answer has ended that it broke off
        self._holder.listen(self._hear)

    @property
    def engine(self) -> EngineFace | None:
        """None while it is not open."""
        return self._holder.engine

    def beside(self) -> "Bridge":
        """One for another conversation with the same engine."""
        return Bridge(self._holder)

    def open(self) -> None:
        """Starts opening the engine, also again after it was lost; ends with Opened, or with Failed."""
        self._holder.open()

    def change(self, open_engine: OpenEngine) -> None:
        """Opens another engine, for all conversations; the one that is open is closed first."""
        self._holder.change(open_engine)

    def ask(self, request: Request) -> None:
        """Submits `request`; what is wrong with it comes as Failed, like everything else."""
        self._handle, self._is_stopped = None, False
        self._begin_asking()
        self._start(lambda: self._ask(request), "ask")

    def stop(self) -> None:
        """Cancels what is being answered."""
        self._is_stopped = True
        if self._handle:
            self._handle.cancel()

    def count_tokens(self, conversation: Conversation) -> int:
        """As the engine that is open now counts them. LocalmoeError when there is none, or no more."""
        return self._open_engine().count_tokens(conversation)

    def take(self) -> list[Event]:
        """What came since the last time, in order."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def leave(self) -> None:
        """This conversation is over; the engine goes on for others."""
        self.stop()
        self._holder.leave(self._hear)

    def close(self) -> None:
        """Stops everything and gives the engine a bounded time to end."""
        self._holder.refuse()
        self.stop()
        self._start(self._holder.close, "close-engine")
        deadline = monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=work, name=name, daemon=True)  # a stuck engine must not keep the program
        self._threads.append(thread)
        thread.start()

    def _ask(self, request: Request) -> None:
        try:
            # Renders the whole conversation: not for the screen's thread.
            self._handle = handle = self._open_engine().submit(request)
            if self._is_stopped:
                handle.cancel()
            for event in handle.events():
                self._put(event)
        except LocalmoeError as error:
            self._put(Failed.of(error))
        except Exception as error:  # noqa: BLE001 - a bug below must be seen, not end the screen
            self._put(bug("the engine broke off", error))
        finally:
            self._end_asking()

    def _open_engine(self) -> EngineFace:
        if (engine := self.engine) is None:
            raise LocalmoeError("the model is not open", "open it again")
        return engine

    def _begin_asking(self) -> None:
        """That the engine is gone, if nobody has taken it yet, is told after the answer's end too."""
        with self._lock:
            self._is_asking = True
            self._lost = next((event for event in self._events if isinstance(event, Lost)), None)
            self._events = [event for event in self._events if not isinstance(event, Lost)]

    def _end_asking(self) -> None:
        with self._lock:
            self._is_asking = False
            if self._lost:
                merge(self._events, self._lost)
                self._lost = None

    def _hear(self, event: Event) -> None:
        """What concerns the engine as a whole."""
        with self._lock:
            if isinstance(event, Lost) and self._is_asking:
                self._lost = event
            else:
                merge(self._events, event)

    def _put(self, event: Event) -> None:
        with self._lock:
            merge(self._events, event)

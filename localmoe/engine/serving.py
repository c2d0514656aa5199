"""Lending this process's engine to other processes of the same user, over a socket in the runtime folder."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from socket import SHUT_RDWR
from threading import Event as Signal
from threading import Lock, Thread

from localmoe.chat.message import Conversation
from localmoe.engine.codec import encode_info
from localmoe.engine.remote_folder import HINT, offer, runtime_folder
from localmoe.engine.remote_model import OpenModel, encode_model
from localmoe.engine.remote_wire import Message, Wire, greeting
from localmoe.engine.request import EngineFace, EngineInfo, Handle, Request
from localmoe.engine.serving_visitor import Visitor
from localmoe.errors import RemoteError
from localmoe.events import Loading, encode

MAX_VISITORS = 64
_PAUSE_S = 0.1  # before it takes the next one, when the system gives it nothing to take it with


class Serving:
    """An offer to share `model`, from before it is open until `close`.

    Raises RemoteError where nothing can be offered.
    """

    def __init__(self, model: OpenModel, folder: Path | None = None) -> None:
        self._model = model
        self._numbers = count(1)
        self._lock = Lock()  # guards what follows
        self._visitors: set[Visitor] = set()
        self._engine: EngineFace | None = None
        self._last: Message | None = None  # how far opening is, or that it is done
        self._closed = Signal()
        try:
            self._socket, self.path = offer(folder or runtime_folder(), model.key)
        except OSError as error:
            raise RemoteError(f"no socket could be made: {error.strerror}", HINT) from error
        self._thread = Thread(target=self._work, name="localmoe-serving", daemon=True)
        self._thread.start()

    @property
    def num_visitors(self) -> int:
        """Processes that are connected now."""
        with self._lock:
            return len(self._visitors)

    def opening(self, progress: Loading) -> None:
        """Tells those who wait how far opening is."""
        self._tell_all({"opening": encode(progress)})

    def ready(self, engine: EngineFace) -> None:
        """From now on `engine` answers."""
        self._engine = engine
        self._tell_all({"ready": encode_info(engine.info)})

    def close(self) -> None:
        """Ends all connections, and what they asked for; safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)  # wakes the thread that waits for the next one
        self._thread.join()
        self._socket.close()
        with self._lock:
            visitors = list(self._visitors)
        for visitor in visitors:
            visitor.leave()

    def _tell_all(self, message: Message) -> None:
        with self._lock:
            self._last = message
            for visitor in self._visitors:
                visitor.tell_state(message)

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._closed.wait(_PAUSE_S)
                continue
            self._receive(Wire(connection))

    def _receive(self, wire: Wire) -> None:
        """Takes one in, unless it is another user's, or there are too many."""
        with self._lock:
            if self._closed.is_set() or len(self._visitors) >= MAX_VISITORS or not wire.is_same_user:
                wire.end()
                return
            welcome = greeting(model=encode_model(self._model))
            visitor = Visitor(wire, f"visitor-{next(self._numbers)}", welcome, lambda: self._engine)
            self._visitors.add(visitor)
            if self._last:
                visitor.tell_state(self._last)
        Thread(target=self._visit, args=(visitor,), name="localmoe-visitor", daemon=True).start()

    def _visit(self, visitor: Visitor) -> None:
        try:
            visitor.visit()
        finally:
            with self._lock:
                self._visitors.discard(visitor)


class Lent:
    """An engine of this process that others use too, by `serving`; None: it could not be offered, as `remarks` say."""

    def __init__(self, engine: EngineFace, serving: Serving | None, remarks: Sequence[str] = ()) -> None:
        self._engine = engine
        self._serving = serving
        lent = ("other localmoe processes of this user may use this engine",) if serving else ()
        self.info: EngineInfo = replace(engine.info, plan=(*engine.info.plan, *lent, *remarks))
        if serving:
            serving.ready(engine)

    def submit(self, request: Request) -> Handle:
        return self._engine.submit(request)

    def count_tokens(self, conversation: Conversation) -> int:
        return self._engine.count_tokens(conversation)

    def close(self) -> None:
        if self._serving:
            self._serving.close()
        self._engine.close()

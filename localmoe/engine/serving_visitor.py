"""One process that uses this process's engine, from its greeting until it is gone."""

from collections.abc import Callable
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from localmoe.engine.codec import decode_conversation, decode_request
from localmoe.engine.remote_wire import MAX_GREETING_BYTES, Message, Wire, check_greeting
from localmoe.engine.serving_outbox import Outbox
from localmoe.errors import LocalmoeError, RemoteError, UsageError
from localmoe.events import Failed, encode

if TYPE_CHECKING:
    from localmoe.engine.request import EngineFace, Handle

GREETING_S = 5.0
BEAT_S = 2.0  # this often it hears something, so that it can tell a stopped process from a slow one
MAX_REQUESTS = 64


class Visitor:
    """Reads, writes and answers in threads of its own; whatever it sends or does not, nobody else waits for it."""

    def __init__(self, wire: Wire, name: str, welcome: Message, engine: "Callable[[], EngineFace | None]") -> None:
        self.wire = wire
        self._name = name
        self._welcome = welcome
        self._engine = engine
        self._outbox = Outbox()
        self._handles: dict[int, Handle | None] = {}  # of its requests; None: not yet accepted
        self._cancelled: set[int] = set()
        self._lock = Lock()  # guards both, and `_gone`
        self._gone = False

    def tell_state(self, message: Message) -> None:
        """Sends `message` when it can be, unless a later one comes before."""
        self._outbox.state(message)

    def visit(self) -> None:
        """Serves until the connection ends; then nothing of its requests goes on."""
        try:
            self.wire.send(self._welcome)
            check_greeting(self.wire.receive(GREETING_S, MAX_GREETING_BYTES))
            _start(self._write)
            while (message := self.wire.receive()) is not None:
                self._take(message)
        except LocalmoeError as error:
            self._refuse(error)
        except OSError:
            pass  # it is gone, or does not greet
        finally:
            self.leave()

    def leave(self) -> None:
        """Ends the connection and cancels what it asked for."""
        with self._lock:
            self._gone = True
            handles = [handle for handle in self._handles.values() if handle]
        self._outbox.close()
        self.wire.end()
        for handle in handles:
            handle.cancel()

    def _refuse(self, error: LocalmoeError) -> None:
        """Says once why it is sent away; it need not listen."""
        _start(lambda: _quietly(lambda: self.wire.send({"leave": encode(Failed.of(error))}))).join(1.0)

    def _write(self) -> None:
        def write() -> None:
            while (messages := self._outbox.take(BEAT_S)) is not None:
                for message in messages or [{"beat": True}]:
                    self.wire.send(message)

        _quietly(write)
        self.wire.end()

    def _take(self, message: Message) -> None:
        match message:
            case {"submit": int(number), "request": dict(data)}:
                self._begin(number, lambda: self._submit(number, data))
            case {"count": int(number), "conversation": list(turns)}:
                self._begin(number, lambda: self._count(turns))
            case {"cancel": int(number)}:
                self._cancel(number)
            case _:
                raise RemoteError("a message that is not understood", "use one version of localmoe on both sides")

    def _begin(self, number: int, work: Callable[[], Message]) -> None:
        with self._lock:
            if number in self._handles:
                raise RemoteError(f"request {number} came twice", "number them")
            is_too_many = len(self._handles) >= MAX_REQUESTS
            if not is_too_many:
                self._handles[number] = None
        if is_too_many:
            self._refuse_request(number, UsageError(f"{MAX_REQUESTS} requests are being answered", "wait for one"))
        else:
            _start(lambda: self._answer(number, work))

    def _answer(self, number: int, work: Callable[[], Message]) -> None:
        """In a thread: says what `work` gives, or what is wrong with it, then passes on what the engine says."""
        try:
            self._reply({"accepted": number, **work()})
            with self._lock:
                handle = self._handles[number]
            for event in handle.events() if handle else ():
                self._outbox.event(number, event)
        except LocalmoeError as error:
            self._refuse_request(number, error)
        except Exception as error:  # noqa: BLE001 - what fails for one visitor must not end in the void
            bug = LocalmoeError(f"the engine broke off: {error!r}", "this is a fault in localmoe: please report it")
            self._refuse_request(number, bug)
        finally:
            with self._lock:
                self._cancelled.discard(number)
                del self._handles[number]

    def _refuse_request(self, number: int, error: LocalmoeError) -> None:
        self._reply({"refused": number, "error": encode(Failed.of(error))})

    def _reply(self, message: Message) -> None:
        """Who asks on and on without listening is sent away."""
        if not self._outbox.reply(message):
            self.wire.end()

    def _submit(self, number: int, data: dict[str, Any]) -> Message:
        request = decode_request({**data, "session": f"{self._name}/{data.get('session', 'default')}"})
        handle = self._open_engine().submit(request)
        with self._lock:
            self._handles[number] = handle
            is_unwanted = self._gone or number in self._cancelled
        if is_unwanted:
            handle.cancel()
        return {}

    def _cancel(self, number: int) -> None:
        with self._lock:
            handle = self._handles.get(number)
            if number in self._handles:
                self._cancelled.add(number)
        if handle:
            handle.cancel()

    def _count(self, turns: list[Any]) -> Message:
        return {"tokens": self._open_engine().count_tokens(decode_conversation(turns))}

    def _open_engine(self) -> "EngineFace":
        engine = self._engine()
        if engine is None:
            raise LocalmoeError("the model is not open yet", "wait until it is")
        return engine


def _start(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, name="localmoe-visitor", daemon=True)
    thread.start()
    return thread


def _quietly(work: Callable[[], None]) -> None:
    """Does `work` as far as the connection lasts: its reader notices the end."""
    try:
        work()
    except (OSError, RemoteError):
        return

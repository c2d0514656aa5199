"""The engine of another process of this user, with the same face as one of this process."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic

from localmoe.chat.message import Conversation
from localmoe.engine.codec import encode_conversation, encode_request
from localmoe.engine.remote_wire import Message, Wire
from localmoe.engine.request import EngineInfo, Request
from localmoe.engine.stream import EventStream
from localmoe.errors import LocalmoeError, RemoteError
from localmoe.events import Event, Failed, Lost, decode

SILENT_S = 30.0  # without a beat, the other process is stopped or stuck
CLOSE_WAIT_S = 2.0

Reply = Message | LocalmoeError


class RemoteEngine:
    """Over `wire`, which has greeted and said that its model is open. `on_event` hears Lost, in another thread."""

    def __init__(self, wire: Wire, info: EngineInfo, on_event: Callable[[Event], None]) -> None:
        self.process = wire.peer[0]
        shared = f"the engine of another localmoe answers, process {self.process}: nothing was loaded"
        self.info = replace(info, plan=(*info.plan, shared), details={**info.details, "engine_process": self.process})
        self._wire = wire
        self._on_event = on_event
        self._numbers = count(1)
        self._lock = Lock()  # guards what follows
        self._streams: dict[int, EventStream] = {}
        self._replies: dict[int, SimpleQueue[Reply]] = {}
        self._end: LocalmoeError | None = None  # why nothing can be asked any more
        self._thread = Thread(target=self._listen, name="localmoe-remote", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> EventStream:
        """Sends `request` and returns once it is accepted; what is wrong with it is raised as by the engine there."""
        number = next(self._numbers)
        stream = EventStream(lambda: self._cancel(number))
        self._ask(number, {"submit": number, "request": encode_request(request)}, stream)
        return stream

    def count_tokens(self, conversation: Conversation) -> int:
        """Prompt tokens of `conversation`, its generation prompt included."""
        number = next(self._numbers)
        return int(self._ask(number, {"count": number, "conversation": encode_conversation(conversation)})["tokens"])

    def close(self) -> None:
        """Cancels what runs and ends the connection; the engine there goes on. Safe to call twice."""
        with self._lock:
            if self._end:
                return
            self._end = LocalmoeError("the engine is closed", "open it again")
            running = dict(self._streams)
        for number in running:
            self._cancel(number)
        deadline_s = monotonic() + CLOSE_WAIT_S
        for stream in running.values():
            stream.wait_ended(max(0.0, deadline_s - monotonic()))
        self._wire.end()
        self._thread.join()

    def _ask(self, number: int, message: Message, stream: EventStream | None = None) -> Message:
        """Sends `message` and waits for the reply of that number."""
        replies: SimpleQueue[Reply] = SimpleQueue()
        with self._lock:
            if self._end:
                raise self._end
            self._replies[number] = replies
            if stream:
                self._streams[number] = stream
        try:
            self._wire.send(message)
        except OSError:
            self._wire.end()  # the thread that listens says why
        except LocalmoeError:
            self._forget(number)
            raise
        reply = replies.get()
        if isinstance(reply, LocalmoeError):
            self._forget(number)
            raise reply
        return reply

    def _forget(self, number: int) -> None:
        with self._lock:
            self._streams.pop(number, None)
            self._replies.pop(number, None)

    def _cancel(self, number: int) -> None:
        """Asks in a thread: who stops an answer must not wait for a process that is stopped itself."""

        def send() -> None:
            with suppress(OSError):  # it has ended: so does the stream
                self._wire.send({"cancel": number})

        Thread(target=send, name="localmoe-cancel", daemon=True).start()

    # In the thread that listens

    def _listen(self) -> None:
        try:
            while (message := self._wire.receive(SILENT_S)) is not None:
                self._hear(message)
            self._lose(self._error("has ended"))
        except TimeoutError:
            self._lose(self._error("does not answer any more; is it stopped?"))
        except OSError:
            self._lose(self._error("has ended"))
        except LocalmoeError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001 - whatever comes, all streams end
            self._lose(self._error(f"sent what is not understood ({error!r})"))

    def _hear(self, message: Message) -> None:
        match message:
            case {"of": int(number), "event": str()}:
                self._put(number, decode({key: value for key, value in message.items() if key != "of"}))
            case {"accepted": int(number)}:
                self._answer(number, message)
            case {"refused": int(number), "error": dict(error)}:
                self._answer(number, error_of(error))
            case {"leave": dict(error)}:
                raise error_of(error)

    def _put(self, number: int, event: Event) -> None:
        with self._lock:
            stream = self._streams.get(number)
        if stream:
            stream.put(event)
            if stream.ended:
                self._forget(number)

    def _answer(self, number: int, reply: Reply) -> None:
        with self._lock:
            replies = self._replies.pop(number, None)
        if replies:
            replies.put(reply)

    def _lose(self, error: LocalmoeError) -> None:
        """Ends everything that waits, and says so unless this side has closed."""
        self._wire.end()
        with self._lock:
            is_news = self._end is None
            self._end = self._end or error
            streams, self._streams = self._streams, {}
            replies, self._replies = self._replies, {}
        for waiting in replies.values():
            waiting.put(error)
        for stream in streams.values():
            stream.put(Failed.of(error))
        if is_news:
            self._tell(Lost(error.message, error.hint))

    def _tell(self, lost: Lost) -> None:
        try:
            self._on_event(lost)
        except LocalmoeError:
            return  # whoever listened is leaving

    def _error(self, what: str) -> RemoteError:
        model = self.info.model
        return RemoteError(
            f"the localmoe that has {model} open (process {self.process}) {what}",
            "ask again: the model is then opened here",
        )


def error_of(failed: Message) -> LocalmoeError:
    """The error that the other side told as Failed; of its kind as far as that decides an exit code."""
    event = decode(failed)
    assert isinstance(event, Failed)
    error = LocalmoeError(event.message, event.hint)
    kinds = {kind.exit_code: kind for kind in LocalmoeError.__subclasses__() if kind.exit_code != 1}
    return kinds.get(event.exit_code, type(error))(event.message, event.hint)

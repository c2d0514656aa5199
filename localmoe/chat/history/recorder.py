"""A thread that keeps chats: who hands it something never waits for the disk."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from localmoe.chat.history.records import Chat
from localmoe.errors import LocalmoeError
from localmoe.events import Event

if TYPE_CHECKING:
    from localmoe.chat.history.history import History
    from localmoe.chat.history.pen import Pen

T = TypeVar("T")
Trouble = Callable[[str, str], None]  # what went wrong, and a hint

CLOSE_WAIT_S = 12.0  # longer than one write waits for another process


class Recorder:
    """Does what it is given, in that order, with the history at `path`; one chat at a time is written.

    `on_trouble` is called in the recorder's thread: for a damaged file, and once for each new reason why something
    could not be kept. A chat goes on without being kept rather than not at all.
    """

    def __init__(self, path: Path, on_trouble: Trouble) -> None:
        self._path = path
        self._on_trouble = on_trouble
        self._last_trouble = ""
        self._work: SimpleQueue[tuple[Callable[[History], Any], Future[Any] | None] | None] = SimpleQueue()
        self._pen: Pen | None = None
        self._thread = Thread(target=self._run, name="history", daemon=True)  # a stuck disk must not keep the program
        self._thread.start()

    def write(self, chat: Chat, line: tuple[int, ...] = ()) -> None:
        """From now on writes `chat`, behind the turns `line`; what is being answered in another ends here."""

        def change(history: "History") -> None:
            from localmoe.chat.history.pen import Pen

            self._finish()
            self._pen = Pen(history, chat, line)

        self._work.put((change, None))

    def ask(self, question: str | None, model: str, *, at: int | None = None, unread: int = 0) -> None:
        """As `Pen.ask`."""
        self._work.put((lambda _: self._pen.ask(question, model, at=at, unread=unread) if self._pen else None, None))

    def configure(self, chat: Chat) -> None:
        """As `Pen.configure`."""
        self._work.put((lambda _: self._pen.configure(chat) if self._pen else None, None))

    def hear(self, event: Event) -> None:
        """As `Pen.hear`."""
        self._work.put((lambda _: self._pen.hear(event) if self._pen else None, None))

    def call(self, wanted: "Callable[[History], T]") -> "Future[T]":
        """What `wanted` makes of the history, behind everything that was handed over before."""
        future: Future[T] = Future()
        self._work.put((wanted, future))
        return future

    def close(self) -> bool:
        """Ends the answer that is still being made and waits until all is kept; False when that took too long."""
        self._work.put(None)
        self._thread.join(CLOSE_WAIT_S)
        return not self._thread.is_alive()

    # In the thread

    def _run(self) -> None:
        try:
            from localmoe.chat.history.history import History

            history = History(self._path, self._on_trouble)
        except LocalmoeError as error:
            self._report(error)
            self._refuse(error)
            return
        with history:
            while self._step(history):
                pass

    def _step(self, history: "History") -> bool:
        """Does the next thing and keeps what is due; whether there is more to come."""
        with suppress(Empty):
            job = self._work.get(timeout=self._pen.due_s() if self._pen else None)
            if job is None:
                self._do(lambda _: self._finish(), history)
                return False
            self._do(job[0], history, job[1])
        self._do(lambda _: self._keep_what_is_due(), history)
        return True

    def _do(self, act: "Callable[[History], T]", history: "History", future: "Future[T] | None" = None) -> None:
        """What went wrong goes to who waits for it, or is reported. It is done also when nobody waits any more."""
        try:
            result = act(history)
        except Exception as error:  # noqa: BLE001 - one thing that fails must not end the keeping of all others
            if future is None:
                self._report(error)
            elif future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(result)

    def _refuse(self, error: LocalmoeError) -> None:
        """There is no history: who asks for something is told so."""
        while job := self._work.get():
            if job[1] and job[1].set_running_or_notify_cancel():
                job[1].set_exception(error)

    def _keep_what_is_due(self) -> None:
        if self._pen:
            self._pen.keep_what_is_due()

    def _finish(self) -> None:
        if self._pen:
            self._pen.finish("cancelled")

    def _report(self, error: Exception) -> None:
        bug = LocalmoeError(f"keeping the chat failed: {error!r}", "this is a fault in localmoe: please report it")
        known = error if isinstance(error, LocalmoeError) else bug
        if known.message != self._last_trouble:
            self._last_trouble = known.message
            self._on_trouble(known.message, known.hint)

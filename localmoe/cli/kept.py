"""What is kept of an answer on the command line, and which chat it continues."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localmoe.chat.history.records import Chat, Turn, new_id
from localmoe.cli.report import say
from localmoe.errors import UsageError
from localmoe.events import Event

if TYPE_CHECKING:
    from localmoe.chat.history.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Keeping:
    """The user's choice: a new chat, unless one is to go on."""

    save: bool = True
    last: bool = False
    chat: str | None = None

    @property
    def continues(self) -> bool:
        """Whether there must be a chat already."""
        return self.last or self.chat is not None


def chat_to_write(keeping: Keeping) -> tuple[Chat, tuple[Turn, ...]]:
    """A new chat, or the one to continue with its turns; ChatNotFoundError when it is not there."""
    if not keeping.continues:
        return Chat(new_id()), ()
    if keeping.last and keeping.chat is not None:
        raise UsageError("-c and --chat name two chats", "take one of them")
    from localmoe.cli.chats.opening import open_history

    with open_history() as history:
        chat = history.last() if keeping.chat is None else history.chat(keeping.chat)
        return chat, history.line(chat)


class Keeper:
    """Keeps one answer while it comes, or nothing."""

    def __init__(self, recorder: "Recorder | None") -> None:
        self._recorder = recorder

    def ask(self, question: str, model: str) -> None:
        """The question was sent."""
        if self._recorder:
            self._recorder.ask(question, model)

    def hear(self, event: Event) -> None:
        """The engine said something."""
        if self._recorder:
            self._recorder.hear(event)


@contextmanager
def keeper_of(keeping: Keeping, chat: Chat, turns: tuple[Turn, ...]) -> Iterator[Keeper]:
    """Within, the next answer is kept behind `turns`; what could not be kept is said at the end, and is no failure."""
    if not keeping.save:
        yield Keeper(None)
        return
    from localmoe.chat.history.recorder import Recorder
    from localmoe.settings import history_file

    troubles: list[tuple[str, str]] = []
    recorder = Recorder(history_file(), lambda *trouble: troubles.append(trouble))
    recorder.write(chat, tuple(turn.id for turn in turns))
    try:
        yield Keeper(recorder)
    finally:
        if not recorder.close():
            troubles.append(("the answer was not kept: the disk took too long", "what was kept: localmoe chats list"))
        for trouble in troubles:
            say(*trouble)

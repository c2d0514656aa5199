"""The chat on the screen as history has it: what was said goes there, earlier chats come from there."""

from asyncio import wrap_future
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localmoe.chat.history.parameters import configured, settings_in
from localmoe.chat.history.records import Chat, Turn, new_id
from localmoe.events import Event

if TYPE_CHECKING:
    from localmoe.chat.history.history import History
    from localmoe.chat.history.recorder import Recorder, Trouble
    from localmoe.settings import Settings

T = TypeVar("T")


class Kept:
    """One chat at a time. Without a path, nothing is kept."""

    def __init__(self, path: Path | None, settings: "Settings") -> None:
        self.chat = configured(Chat(new_id()), settings)
        self.is_on = path is not None
        self._path = path
        self._settings = settings
        self._said: dict[str, Any] = {}  # parameters that were set since this chat is on the screen: over flags too
        self._line: tuple[int, ...] = ()
        self._recorder: Recorder | None = None

    @property
    def session(self) -> str:
        """What the engine's latent cache is kept under."""
        return f"chat-{self.chat.id}"

    @property
    def settings(self) -> "Settings":
        """What is in force for the next question: the chat's parameters over the settings, the model that is open."""
        return replace(settings_in(self.chat, self._settings), model=self._settings.model, **self._said)

    def origin(self, parameter: str) -> str:
        """Where the value of a parameter comes from, in words."""
        if parameter in self._said or (
            parameter in self.chat.parameters and self.chat.parameters[parameter] != getattr(self._settings, parameter)
        ):
            return "this chat"
        return "the model" if getattr(self.settings, parameter) is None else self._settings.said_by(parameter)

    def set(self, parameter: str, value: Any) -> None:
        """Gives the chat a value of its own; None gives it back the one it would have without."""
        parameters = {**self.chat.parameters, parameter: value}
        self._said[parameter] = value
        if value is None:
            del self._said[parameter], parameters[parameter]
        self._configure(replace(self.chat, parameters=parameters))

    def set_system(self, text: str) -> None:
        """Gives the chat a system prompt; an empty one is none."""
        self._configure(replace(self.chat, system=text))

    def use_settings(self, settings: "Settings") -> None:
        """What nobody chose for this chat comes from `settings` now; the model that is open stays."""
        self._settings = replace(settings, model=self._settings.model)

    def use_model(self, model: str) -> None:
        """From now on `model` answers, in this chat and in those that begin later."""
        self._settings = replace(self._settings, model=model)
        self._configure(configured(self.chat, self.settings))

    def _configure(self, chat: Chat) -> None:
        self.chat = chat
        if self._recorder:
            self._recorder.configure(chat)

    def beside(self) -> "Kept":
        """For another chat, a new one, with the same settings and in the same file."""
        return Kept(self._path, self._settings)

    def open(self, on_trouble: "Trouble") -> None:
        """Starts keeping, in a thread; `on_trouble` is called there."""
        from localmoe.chat.history.recorder import Recorder

        if self._path and not self._recorder:
            self._recorder = Recorder(self._path, on_trouble)
            self._recorder.write(self.chat, self._line)

    def begin(self, chat: Chat | None = None, turns: tuple[Turn, ...] = ()) -> None:
        """From now on `chat` is on the screen, with `turns`; a new one where there is none."""
        self.chat, self._said = chat or Chat(new_id()), {}
        self.chat, self._line = configured(self.chat, self.settings), tuple(turn.id for turn in turns)
        if self._recorder:
            self._recorder.write(self.chat, self._line)

    def ask(self, question: str | None, model: str, at: int, unread: int = 0) -> None:
        """The question was sent, behind `at` turns of which the model does not read the first `unread`."""
        if self._recorder:
            self._recorder.ask(question, model, at=at, unread=unread)

    def hear(self, event: Event) -> None:
        """The engine said something of the answer."""
        if self._recorder:
            self._recorder.hear(event)

    async def read(self, wanted: "Callable[[History], T]") -> T:
        """What `wanted` makes of the history, without a wait for the screen. LocalmoeError when it cannot."""
        assert self._recorder is not None
        return await wrap_future(self._recorder.call(wanted))

    def close(self) -> None:
        """Keeps the rest."""
        if self._recorder:
            self._recorder.close()

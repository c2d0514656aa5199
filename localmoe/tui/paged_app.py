"""What the chat's pages share: who knows this machine, transfers that go on beside the chat, and the model in use."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from textual import on, work
from textual.app import App
from textual.message import Message

from localmoe.chat.history.parameters import PARAMETERS
from localmoe.errors import LocalmoeError
from localmoe.settings import Origin, Settings
from localmoe.tui.away import away
from localmoe.tui.bridge import Bridge, OpenEngine

if TYPE_CHECKING:
    from localmoe.engine.request import EngineInfo
    from localmoe.tui.kept import Kept
    from localmoe.tui.model_list import Listed
    from localmoe.tui.screens.chat import ChatScreen
    from localmoe.tui.screens.full_page import FullPageScreen
    from localmoe.tui.surveyor import Surveyor, SurveyorFor
    from localmoe.tui.tabs import Tabs
    from localmoe.tui.transfers import Transfer, Transfers

OpenEngineFor = Callable[["Settings"], OpenEngine]

ANSWERING = "An answer is being made. Esc stops it; then choose the model"


class PagedApp(App[None]):
    """An app with a chat, and pages that come over it."""

    kept: "Kept"
    tabs: "Tabs"

    class TransferEnded(Message):
        """A download or a check has ended, says its thread."""

        def __init__(self, transfer: "Transfer") -> None:
            super().__init__()
            self.transfer = transfer

    def __init__(self, open_engine_for: OpenEngineFor, settings: "Settings", surveyor_for: "SurveyorFor") -> None:
        super().__init__()
        self.settings = settings
        self.bridge = Bridge(open_engine_for(settings))
        self.changed_later: frozenset[str] = frozenset()  # settings, since the engine was opened
        self._measuring = Lock()  # held while this machine is measured
        self._open_engine_for = open_engine_for
        self._surveyor_for = surveyor_for

    @property
    def info(self) -> "EngineInfo | None":
        """Of the engine that is open."""
        return self.bridge.engine.info if self.bridge.engine else None

    @property
    def chat_screen(self) -> "ChatScreen":
        """The chat, whatever is over it."""
        from localmoe.tui.screens.chat import ChatScreen

        return next(screen for screen in self.screen_stack if isinstance(screen, ChatScreen))

    def open_surveyor(self) -> "Surveyor":
        """Who knows this machine, under the settings of now. Not for the screen's thread."""
        return self._surveyor_for(self.settings)

    def _open_page(self, page: "FullPageScreen[Any]", then: "Callable[[Any], None] | None" = None) -> None:
        """Over the chat, in the place of another page."""
        from localmoe.tui.screens.full_page import FullPageScreen

        if isinstance(self.screen, FullPageScreen):
            self.pop_screen()
        self.push_screen(page, then)

    # Models

    def open_models(self) -> None:
        """The models: what is known, what is here, what is on its way."""
        from localmoe.tui.screens.models import ModelsScreen

        if not isinstance(self.screen, ModelsScreen):
            self._open_page(ModelsScreen(self.open_surveyor, self.transfers, self._open_model), self._use)

    action_open_models = open_models

    def action_choose_model(self, name: str = "") -> None:
        """Talks to the model `name`; without one the models are shown."""
        if name:
            self.use_model(name)
        else:
            self.open_models()

    @property
    def _open_model(self) -> str:
        return self.info.model if self.info else ""

    # Settings and this machine

    def open_settings(self) -> None:
        """Every setting, and where its value comes from."""
        from localmoe.tui.screens.settings import SettingsScreen

        if not isinstance(self.screen, SettingsScreen):
            self._open_page(SettingsScreen(self))

    action_open_settings = open_settings

    def take_setting(self, name: str, value: object) -> None:
        """config.toml says `value` of `name` now; None: nothing. What can be is in force at once."""
        if self.settings.origin(name) in ("flag", "environment"):
            return
        in_force = getattr(Settings(), name) if value is None else value
        origins: dict[str, Origin] = {**self.settings.origins, name: "default" if value is None else "config.toml"}
        changed: dict[str, Any] = {name: in_force, "origins": origins}
        self.settings = replace(self.settings, **changed)
        for screen in self.tabs.screens:
            screen.kept.use_settings(self.settings)
        if name == "theme":
            self.theme = str(in_force)
        elif name not in PARAMETERS:
            self.changed_later |= {name}

    def open_doctor(self) -> None:
        """What this machine is, what holds it back, and what it could run."""
        from localmoe.tui.screens.doctor import DoctorScreen

        if not isinstance(self.screen, DoctorScreen):
            self._open_page(DoctorScreen(self.open_surveyor, self._measuring, self._is_busy))

    action_open_doctor = open_doctor

    def _is_busy(self) -> bool:
        """Whether any of the chats is being answered."""
        return any(screen.readings.is_busy for screen in self.tabs.screens)

    def _use(self, listed: "Listed | None") -> None:
        if listed:
            self.use_model(listed.name)

    @work(exclusive=True, group="model")
    async def use_model(self, name: str) -> None:
        """Another model answers from now on. The one that is open is closed first: two may not fit."""
        from localmoe.hub.catalog import resolve

        if self._is_busy():
            self.notify(ANSWERING, severity="warning", markup=False)
            return
        try:
            await away(lambda: resolve(name))
        except LocalmoeError as error:
            self.notify(error.hint, title=error.message, severity="warning", timeout=15, markup=False)
            return
        self.settings, self.changed_later = replace(self.settings, model=name), frozenset()
        for screen in self.tabs.screens:
            screen.change_model(name)
        self.bridge.change(self._open_engine_for(self.settings))

    # Transfers

    @cached_property
    def transfers(self) -> "Transfers":
        """All that was begun from here."""
        from localmoe.tui.transfers import Transfers

        return Transfers(self._tell_ended)

    def close_transfers(self) -> tuple[str, ...]:
        """Pauses what runs; a line for each download that is to be gone on with."""
        return self.transfers.close() if "transfers" in vars(self) else ()

    def _tell_ended(self, transfer: "Transfer") -> None:
        self.post_message(self.TransferEnded(transfer))

    @on(TransferEnded)
    def _on_transfer_ended(self, ended: TransferEnded) -> None:
        from localmoe.tui.screens.models import ModelsScreen
        from localmoe.tui.transfer_words import ended as words

        if not isinstance(self.screen, ModelsScreen) and ended.transfer.state != "paused":
            what, hint, is_good = words(ended.transfer)
            severity: Literal["information", "warning"] = "information" if is_good else "warning"
            self.notify(hint or what, title=what if hint else "", severity=severity, timeout=20, markup=False)

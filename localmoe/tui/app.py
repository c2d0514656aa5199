"""The application: themes, the engine's bridge, and the way out."""

import os
import signal
from asyncio import get_running_loop
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import App
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.message import Message

from localmoe.chat.history.records import Chat, Turn
from localmoe.errors import LocalmoeError
from localmoe.tui.away import away
from localmoe.tui.clipboard import hand_over
from localmoe.tui.kept import Kept
from localmoe.tui.keymap import Keymap
from localmoe.tui.paged_app import OpenEngineFor, PagedApp
from localmoe.tui.palette import ChatCommands, ThemeNames
from localmoe.tui.prompt_history import PromptHistory
from localmoe.tui.screens.chat import ChatScreen
from localmoe.tui.tabs import Tab, Tabs
from localmoe.tui.themes import DARK, THEMES

if TYPE_CHECKING:
    from pathlib import Path

    from localmoe.settings import Settings
    from localmoe.tui.bridge import Bridge
    from localmoe.tui.surveyor import SurveyorFor


FEW_COLOURS = "ansi-dark"
PAST = "prompts.jsonl"  # what was sent, beside the chats


class ChatApp(PagedApp):
    """Chats in tabs, with one engine. UsageError for keys in the settings that cannot be."""

    TITLE = "localmoe"
    CSS = "ToastRack { margin-bottom: 4; }"  # remarks leave the prompt free
    COMMANDS: ClassVar = {ChatCommands}  # type: ignore[assignment]
    BINDINGS: ClassVar[list[BindingType]] = []
    DEFAULT_MODE = "tab-1"

    class Trouble(Message):
        """Something about the chats that are kept, from the thread that keeps them."""

        def __init__(self, message: str, hint: str) -> None:
            super().__init__()
            self.message, self.hint = message, hint

    def __init__(
        self,
        open_engine_for: OpenEngineFor,
        settings: "Settings",
        surveyor_for: "SurveyorFor",
        history: "Path | None" = None,
        begun: tuple[Chat, tuple[Turn, ...]] | None = None,
    ) -> None:
        self.keymap = Keymap(settings.keys)
        if not os.environ.get("NO_COLOR"):
            os.environ.pop("NO_COLOR", None)  # empty is unset, says no-color.org; Textual sees a wish in it
        super().__init__(open_engine_for, settings, surveyor_for)
        self.kept = Kept(history, settings)
        self._begun = begun
        self._history = history
        self.tabs = Tabs(self, self._make_screen, self._on_shown)
        self.tabs.add(self.bridge, self.kept)
        self.set_keymap(self.keymap.chosen)
        for theme in THEMES:
            self.register_theme(theme)
        self._begin_with(self._chosen_theme())

    def _begin_with(self, theme: str) -> None:
        """Uses `theme` from the first style on: changed later, all styles would be read and applied once more."""
        self.set_reactive(App.theme, theme)
        is_dark = self.current_theme.dark
        self.update_classes({f"-theme-{theme}": True, "-dark-mode": is_dark, "-light-mode": not is_dark}, update=False)
        self._refresh_truecolor_filter(self.ansi_theme)
        self.stylesheet.set_variables(self.get_css_variables())

    def _make_screen(self, bridge: "Bridge", kept: Kept) -> ChatScreen:
        begun, self._begun = self._begun, None
        past = PromptHistory(self._history.with_name(PAST) if self._history else None)
        screen = ChatScreen(bridge, kept, self.tabs, begun, self.keymap, past)
        screen._css_update_count = self._css_update_count  # else all styles are read and applied twice when it comes
        return screen

    def _on_shown(self, tab: Tab) -> None:
        self.bridge, self.kept = tab.bridge, tab.kept
        self.call_after_refresh(self._keep, tab)

    def _keep(self, tab: Tab) -> None:
        tab.kept.open(self._tell_trouble)

    def _tell_trouble(self, message: str, hint: str) -> None:
        self.post_message(self.Trouble(message, hint))

    def on_load(self) -> None:
        self.stylesheet.apply(self)  # before what is in it is made: that takes colours over from here

    def on_mount(self) -> None:
        self._leave_on_signals()
        has_few_colours = self.console.color_system == "standard" and not self.is_headless
        if has_few_colours and self.settings.origin("theme") == "default":
            self.theme = FEW_COLOURS  # 16 of them: ours would be white on black
        self.call_after_refresh(self._keep, self.tabs.current)
        chosen = self.settings.theme
        if self.settings.origin("theme") != "default" and chosen not in self.available_themes:
            self.notify(f"No theme is called {chosen}. /theme chooses one", severity="warning", markup=False)

    # Leaving, whatever the reason: the terminal is given back as it was

    @property
    def fault(self) -> Exception | None:
        """What broke, so that the chat had to end."""
        return self._exception

    def _leave_on_signals(self) -> None:
        """Ended by another program, or its terminal gone, a chat leaves as with Ctrl+Q."""
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                get_running_loop().add_signal_handler(number, partial(self.exit, return_code=128 + number))

    def _fatal_error(self) -> None:
        """In place of Textual's page of source and variables: whoever runs the chat says it in two lines."""
        self._close_messages_no_wait()

    @on(Trouble)
    def _on_trouble(self, trouble: Trouble) -> None:
        self.notify(trouble.hint, title=trouble.message, severity="warning", timeout=20, markup=False)

    def action_help_quit(self) -> None:
        """Ctrl+C with nothing to copy: stops an answer, never leaves."""
        if isinstance(self.screen, ChatScreen) and self.screen.readings.is_busy:
            self.screen.action_stop()
        else:
            self.notify(f"{self.keymap.name('app.quit') or '/quit'} leaves localmoe", markup=False)

    def action_choose_theme(self, name: str = "") -> None:
        """Uses the theme `name`; without one they are shown to choose from."""
        if name:
            self.action_set_theme(name)
        else:
            self.push_screen(CommandPalette(providers=[ThemeNames], placeholder="Search for themes…"))

    def action_set_theme(self, name: str) -> None:
        """Uses the theme `name`, also in the next run."""
        if name not in self.available_themes:
            self.notify(f"No theme is called {name}. /theme shows all", severity="warning", markup=False)
            return
        self.theme = name
        self._keep_theme(name)

    @work(exclusive=True, group="theme")
    async def _keep_theme(self, name: str) -> None:
        from localmoe.config_toml import write_setting

        try:
            await away(lambda: write_setting("theme", name))
        except LocalmoeError as error:
            self.notify(error.hint, title=f"The theme is not kept: {error.message}", severity="warning", markup=False)
        else:
            self.take_setting("theme", name)

    def copy_to_clipboard(self, text: str) -> None:
        """By OSC 52 and by the system's own tools: whichever works."""
        super().copy_to_clipboard(text)
        if not self.is_headless:
            environ = dict(os.environ)
            Thread(target=hand_over, args=(text, environ), name="clipboard", daemon=True).start()

    def _chosen_theme(self) -> str:
        name = self.settings.theme
        is_own_choice = self.settings.origin("theme") != "default" and name in self.available_themes
        return name if is_own_choice else DARK.name

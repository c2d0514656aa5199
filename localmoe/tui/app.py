"""The application: themes, the engine's bridge, and the way out."""

from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import BindingType
from textual.screen import Screen

from localmoe.tui.bridge import Bridge, OpenEngine
from localmoe.tui.commands import ChatCommands
from localmoe.tui.screens.chat import ChatScreen
from localmoe.tui.themes import DARK, THEMES

if TYPE_CHECKING:
    from localmoe.settings import Settings


class ChatApp(App[None]):
    """One chat with one engine."""

    TITLE = "localmoe"
    COMMANDS: ClassVar = {ChatCommands}  # type: ignore[assignment]
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, open_engine: OpenEngine, settings: "Settings") -> None:
        super().__init__()
        self.settings = settings
        self.bridge = Bridge(open_engine)
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self._chosen_theme()

    def get_default_screen(self) -> Screen[None]:
        return ChatScreen(self.bridge, self.settings)

    def on_mount(self) -> None:
        chosen = self.settings.theme
        if self.settings.origin("theme") != "default" and chosen not in self.available_themes:
            self.notify(f"No theme is called {chosen}. Ctrl+P, theme: choose", severity="warning", markup=False)

    def action_help_quit(self) -> None:
        """Ctrl+C with nothing to copy: stops an answer, never leaves."""
        if isinstance(self.screen, ChatScreen) and self.screen.readings.is_busy:
            self.screen.action_stop()
        else:
            self.notify("Ctrl+Q leaves localmoe", markup=False)

    def action_set_theme(self, name: str) -> None:
        """Uses the theme `name` until the program ends."""
        self.theme = name

    def _chosen_theme(self) -> str:
        name = self.settings.theme
        is_own_choice = self.settings.origin("theme") != "default" and name in self.available_themes
        return name if is_own_choice else DARK.name

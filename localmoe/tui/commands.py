"""One table of what can be done: keys, the help screen and the palette are made from it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider


@dataclass(frozen=True, slots=True)
class Command:
    """`noun: verb`, what it does, and the key that does it."""

    id: str  # "chat.new": what a keymap names
    action: str  # an action of the chat screen
    help: str
    key: str = ""
    key_name: str = ""  # "Ctrl+N"

    @property
    def title(self) -> str:
        """The palette's words: "chat: new"."""
        return self.id.replace(".", ": ")

    def binding(self) -> Binding:
        """The key binding; it wins over the prompt's own."""
        return Binding(self.key, self.action, self.help, id=self.id, key_display=self.key_name, priority=True)


STOP = Command("answer.stop", "stop", "Stop the answer; what came stays", "escape", "Esc")

COMMANDS = (
    STOP,
    Command("answer.copy", "copy_answer", "Copy the last answer", "ctrl+y", "Ctrl+Y"),
    Command("thoughts.toggle", "toggle_thoughts", "Open or close the thoughts", "ctrl+t", "Ctrl+T"),
    Command("panel.toggle", "toggle_panel", "Show or hide the engine panel", "f2", "F2"),
    Command("chat.new", "new_chat", "Start a new chat", "ctrl+n", "Ctrl+N"),
    Command("palette.open", "app.command_palette", "Find a command", "ctrl+p", "Ctrl+P"),
    Command("keys.show", "show_keys", "Show these keys", "f1", "F1"),
    Command("theme.choose", "app.change_theme", "Choose the colours"),
    Command("app.quit", "app.quit", "Leave localmoe", "ctrl+q", "Ctrl+Q"),
)

BINDINGS = [command.binding() for command in COMMANDS if command.key]


class ChatCommands(Provider):
    """The table in the command palette, and every theme by its name."""

    async def discover(self) -> Hits:
        for command in self._commands():
            yield DiscoveryHit(command.title, self._runner(command), help=_with_key(command))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in (*self._commands(), *self._themes()):
            if (score := matcher.match(command.title)) > 0:
                yield Hit(score, matcher.highlight(command.title), self._runner(command), help=_with_key(command))

    def _commands(self) -> list[Command]:
        return [command for command in COMMANDS if command.id != "palette.open"]

    def _themes(self) -> list[Command]:
        names = sorted(self.app.available_themes)
        return [Command(f"theme.{name}", f"app.set_theme({name!r})", f"Use the colours of {name}") for name in names]

    def _runner(self, command: Command) -> Callable[[], Any]:
        return partial(self.screen.run_action, command.action)


def _with_key(command: Command) -> str:
    return f"{command.help} ({command.key_name})" if command.key_name else command.help

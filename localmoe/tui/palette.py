"""The table of commands in the command palette, and every theme by its name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider

from localmoe.tui.commands import COMMANDS, Command
from localmoe.tui.keymap import Keymap


class ChatCommands(Provider):
    """What Ctrl+P finds."""

    async def discover(self) -> Hits:
        for command in self._commands():
            yield DiscoveryHit(command.title, self._runner(command), help=self._help(command))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in (*self._commands(), *self._themes()):
            if (score := matcher.match(command.title)) > 0:
                yield Hit(score, matcher.highlight(command.title), self._runner(command), help=self._help(command))

    def _commands(self) -> list[Command]:
        return [command for command in COMMANDS if command.id != "palette.open" and not command.is_of_prompt]

    def _themes(self) -> list[Command]:
        return themes(self.app)

    def _runner(self, command: Command) -> Callable[[], Any]:
        return partial(self.screen.run_action, command.action)

    def _help(self, command: Command) -> str:
        keymap = getattr(self.app, "keymap", None)
        key = keymap.name(command.id) if isinstance(keymap, Keymap) else ""
        ways = [way for way in (key, f"/{command.slash}" if command.slash else "") if way]
        return f"{command.help} ({', '.join(ways)})" if ways else command.help


class ThemeNames(Provider):
    """Every theme; the one that is chosen stays for the next run."""

    async def discover(self) -> Hits:
        for theme in themes(self.app):
            yield DiscoveryHit(theme.id.removeprefix("theme."), partial(self.app.run_action, theme.action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for theme in themes(self.app):
            name = theme.id.removeprefix("theme.")
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), partial(self.app.run_action, theme.action))


def themes(app: App[Any]) -> list[Command]:
    """A command for each theme."""
    names = sorted(app.available_themes)
    return [Command(f"theme.{name}", f"app.set_theme({name!r})", f"Use the colours of {name}") for name in names]

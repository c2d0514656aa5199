"""All keys in force and all commands on one page, from the table of commands."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from localmoe.tui.commands import COMMANDS
from localmoe.tui.keymap import Keymap
from localmoe.tui.screens.page import PageScreen, table

_IN_THE_PROMPT = [
    ("/", "Commands, as listed below"),
    ("@path", "Attach a text file"),
    ("Up Down", "What was sent before, at the first and last line"),
    ("Tab", "Take what is suggested; else go to the questions to try"),
    ("Ctrl+Z", "Undo"),
    ("Ctrl+C", "Copy what is selected"),
]
_NOTE = '[keys] in config.toml gives a command other keys by its name in the palette: answer.copy = "f9".'


class KeysScreen(PageScreen):
    """F1 or Esc closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f1", "dismiss", "Close", id="keys.close")]

    def __init__(self, keymap: Keymap) -> None:
        keys = [_key(keymap.names(command.id), command.help) for command in COMMANDS if keymap.names(command.id)]
        slashes = [
            (command.usage, command.help) for command in sorted(COMMANDS, key=lambda c: c.slash) if command.slash
        ]
        parts: list[Content | str] = [table(keys), "In the prompt", table(_IN_THE_PROMPT), "Commands", table(slashes)]
        super().__init__("Keys and commands", parts, _NOTE)


def _key(names: list[str], help: str) -> tuple[str, str]:
    first, *others = names
    return first, f"{help} (also {', '.join(others)})" if others else help

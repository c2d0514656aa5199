"""What is typed behind a slash: which command it is, and how it could go on."""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from localmoe.tui.commands import COMMANDS, Command

_TYPED = re.compile(r"/([A-Za-z][\w-]*)(?:\s+(.*))?", re.S)
SLASHES = {command.slash: command for command in COMMANDS if command.slash}
_OTHER_WORDS = {"exit": "quit", "new": "clear", "retry": "regen", "keys": "help", "commands": "help"}


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as it was typed; None for `command`: there is none of that name."""

    name: str
    argument: str
    command: Command | None

    @property
    def trouble(self) -> str:
        """Why it cannot be done, and what to do instead; empty where it can."""
        if self.command is None:
            close = get_close_matches(self.name.lower(), SLASHES, n=1, cutoff=0.5)
            near = _OTHER_WORDS.get(self.name.lower()) or (close[0] if close else "help")
            return f"No /{self.name}: /{near}? A space before the slash sends it as text"
        if self.argument and not self.command.takes:
            return f"/{self.name} stands by itself; nothing may follow it"
        return ""


def parse(text: str) -> Typed | None:
    """The command that `text` is; None for a text to send: /etc/hosts is no command, nor is " /help"."""
    if not (match := _TYPED.fullmatch(text.rstrip())):
        return None
    name = match[1]
    return Typed(name, (match[2] or "").strip(), SLASHES.get(name.lower()))


def commands_like(begun: str) -> list[Command]:
    """The commands whose word begins with `begun`, then those that hold it."""
    begun = begun.lower()
    first = [command for name, command in sorted(SLASHES.items()) if name.startswith(begun)]
    return first + [command for name, command in sorted(SLASHES.items()) if begun in name and command not in first]


def as_text(text: str) -> str:
    """`text` as it is sent: the space that kept it from being a command goes."""
    return text[1:] if text.startswith(" /") else text

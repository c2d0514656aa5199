"""Which keys are in force: those of the table of commands, and the user's choices over them."""

from collections.abc import Mapping
from difflib import get_close_matches

from textual.keys import Keys

from localmoe.errors import UsageError
from localmoe.key_choices import KeyChoice
from localmoe.tui.commands import COMMANDS

_MODIFIERS = ("ctrl", "alt", "shift", "super", "hyper", "meta")
_NAMES = {
    "escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "delete": "Del", "insert": "Ins", "question_mark": "?",
}  # fmt: skip
_WRITING = {"backspace", "delete", "space", "left", "right", "up", "down"}  # without them nobody can write
_ENTER, _SENDING = {"enter", "ctrl+m"}, ("prompt.send", "prompt.newline")
_KNOWN = {key.value for key in Keys} | {"space", "plus", "minus", "comma", "full_stop"}


class Keymap:
    """The keys of every command, by its id."""

    def __init__(self, chosen: Mapping[str, KeyChoice] | None = None) -> None:
        """UsageError for what is no command or no key, and for a key that two commands would have."""
        self.chosen = {name: _keys(choice, name) for name, choice in (chosen or {}).items()}
        if chosen:
            _check(chosen, self.chosen)

    def keys(self, command_id: str) -> tuple[str, ...]:
        """The keys of a command of the chat, as Textual writes them; none where it has no key."""
        if command_id in self.chosen:
            return tuple(self.chosen[command_id].split(","))
        return next(tuple(c.key.split(",")) for c in COMMANDS if c.id == command_id) if command_id in _IDS else ()

    def name(self, command_id: str, default: str = "") -> str:
        """What to press, in words: "Ctrl+Y"; empty where there is no key. `default` is a dialogue's own key."""
        keys = self.keys(command_id) or tuple(default.split(","))
        return key_name(keys[0]) if keys and keys[0] else ""

    def names(self, command_id: str) -> list[str]:
        """All keys of the command, in words."""
        return [key_name(key) for key in self.keys(command_id) if key]


_IDS = {command.id for command in COMMANDS}


def key_name(key: str) -> str:
    """For "ctrl+pageup" it is "Ctrl+PgUp"."""
    return "+".join(_NAMES.get(part, part.upper() if len(part) == 1 else part.capitalize()) for part in key.split("+"))


def _keys(choice: KeyChoice, name: str) -> str:
    keys = [key.strip().lower() for key in choice.keys.split(",")]
    for key in keys:
        *modifiers, last = key.split("+")
        is_known = last in _KNOWN or (len(last) == 1 and last.isprintable() and modifiers)
        if not is_known or any(modifier not in _MODIFIERS for modifier in modifiers):
            hint = "for one: ctrl+k, alt+enter or f9; several with commas between them"
            raise UsageError(f"{choice.where}: {name}: {key!r} is no key", hint)
        if not modifiers and (last in _WRITING or (last in _ENTER and name not in _SENDING)):
            raise UsageError(f"{choice.where}: {name}: {key} is needed for writing", "take one with ctrl, or f1 to f12")
    return ",".join(keys)


def _check(chosen: Mapping[str, KeyChoice], keys: Mapping[str, str]) -> None:
    """No unknown ids, and within each screen no key twice."""
    screens = {"chat": {command.id: command.key for command in COMMANDS}, **_dialogues()}
    known = {name for ids in screens.values() for name in ids}
    for name, choice in chosen.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "F1 in the chat shows every command with its id"
            raise UsageError(f"{choice.where}: no command is called {name!r}", hint)
    for ids in screens.values():
        _check_screen(chosen, {name: keys.get(name, default) for name, default in ids.items()})


def _check_screen(chosen: Mapping[str, KeyChoice], in_force: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for name in sorted(in_force, key=lambda name: name in chosen):  # the user's come last, so that theirs is named
        for key in filter(None, in_force[name].split(",")):
            if (other := owners.setdefault(key, name)) != name and name in chosen:
                hint = f"give {other} another key too, or take one for {name} that is free (F1 shows them)"
                raise UsageError(f"{chosen[name].where}: {key} is the key of {other} already", hint)


def _dialogues() -> dict[str, dict[str, str]]:
    """The keys with ids of all other screens, found where the screens are."""
    from importlib import import_module
    from pkgutil import iter_modules

    from textual.binding import Binding
    from textual.screen import Screen

    from localmoe.tui import screens

    found: dict[str, dict[str, str]] = {}
    for module in iter_modules(screens.__path__):
        for thing in vars(import_module(f"{screens.__name__}.{module.name}")).values():
            if isinstance(thing, type) and issubclass(thing, Screen) and "BINDINGS" in vars(thing):
                ids = {b.id: b.key for b in thing.BINDINGS if isinstance(b, Binding) and b.id}
                if not ids.keys() & _IDS:
                    found[thing.__name__] = ids
    return found

"""How what is being typed could go on: commands behind a slash, paths behind an @."""

import re
from dataclasses import dataclass

from localmoe.chat.attachment import as_mention, completions
from localmoe.chat.history.parameters import PARAMETERS
from localmoe.tui.slash import SLASHES, commands_like

_PATH = re.compile(r'(?<!\S)@("?)([^\s"]*|(?<=")[^"\n]*)$')
_ANSWERS = {"think": ("on", "off", "default"), "set": PARAMETERS}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """`text` instead of the last `num_typed` characters before the cursor."""

    text: str
    label: str
    help: str
    num_typed: int
    is_whole: bool = False  # with it the command is complete: Enter does it

    def is_typed_in(self, before: str) -> bool:
        """Whether it stands there already."""
        return before.endswith(self.text.rstrip()) and len(self.text.rstrip()) == self.num_typed


def suggest(before: str, themes: tuple[str, ...] = ()) -> list[Suggestion]:
    """Suggestions for the text before the cursor. Looks into folders: not in the screen's own time."""
    if re.fullmatch(r"/[\w-]*", before):
        return [
            Suggestion(f"/{c.slash}{' ' * bool(c.takes)}", c.usage, c.help, len(before), is_whole=not c.takes)
            for c in commands_like(before[1:])
        ]
    if match := re.fullmatch(r"/(\w+) +(\S*)", before):
        return _arguments(match[1].lower(), match[2], themes)
    if match := _PATH.search(before):
        return _paths(match[2], len(match[0]))
    return []


def _arguments(name: str, begun: str, themes: tuple[str, ...]) -> list[Suggestion]:
    if name == "attach":
        return [Suggestion(path, path, "", len(begun)) for path in completions(begun)]
    choices = themes if name == "theme" else _ANSWERS.get(name, ())
    is_last = name in SLASHES and name != "set"
    return [
        Suggestion(choice if is_last else f"{choice} ", choice, "", len(begun), is_whole=is_last)
        for choice in choices
        if choice.startswith(begun)
    ]


def _paths(begun: str, num_typed: int) -> list[Suggestion]:
    found = []
    for path in completions(begun):
        is_folder = path.endswith("/")
        text = f"@{path}" if is_folder and " " not in path else as_mention(path)
        text = text.removesuffix('"') if is_folder else f"{text} "
        found.append(Suggestion(text, path, "", num_typed))
    return found

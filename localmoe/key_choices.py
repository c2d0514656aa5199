"""The table [keys] of config.toml: which keys the user gave to which command.

What commands there are, it does not know.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.errors import UsageError

KEYS = "keys"


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """Keys that the user gave a command: "f9", or several with commas; and where that stands."""

    keys: str
    where: str  # "/home/me/.config/localmoe/config.toml, line 12"


def key_choices(file: Path) -> dict[str, KeyChoice]:
    """The table [keys] of the file, by command: `answer.copy = "f9"`. UsageError names the line of what is no key."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    import tomllib

    table = tomllib.loads(text).get(KEYS, {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: keys must be a table", 'write [keys], and under it: answer.copy = "f9"')
    return {name: KeyChoice(keys, f"{file}, line {_key_line(text, name)}") for name, keys in _flat(file, text, table)}


def _flat(file: Path, text: str, table: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, str]]:
    """`answer.copy` and `"answer.copy"` are the same."""
    for key, value in table.items():
        name = f"{outer}{key}"
        if isinstance(value, dict):
            yield from _flat(file, text, value, f"{name}.")
        elif isinstance(value, str):
            yield name, value
        else:
            where = f"{file}, line {_key_line(text, name)}"
            raise UsageError(f"{where}: {name} must be a key, not {value!r}", f'for one: {name} = "ctrl+k"')


def _key_line(text: str, name: str) -> int:
    """The line that gives `name` its key: in [keys] as `answer.copy`, or in [keys.answer] as `copy`."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[([^\]]+)\]", line):
            table = f"{_bare(head[1])}."
        elif (named := re.match(r"\s*([^=#]+?)\s*=", line)) and f"{table}{_bare(named[1])}" == f"{KEYS}.{name}":
            return number
    return 1


def _bare(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)

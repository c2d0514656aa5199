"""A user's own models: models.toml in the config directory, in the catalogue's form, checked key by key.

[my-model]                     a table per model; its name is what `-m` takes
repo = "org/name"              on the hub; or
folder = "~/models/mine"       one on this machine
title, revision, format, size_bytes, params, active_params, context, template, temperature, top_p, note
                               as the head of the catalogue's models.toml explains them; all may be left out
shape = "deepseek-v3"          optional: a shape of the catalogue, for predictions before it is downloaded
"""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from localmoe.errors import UsageError
from localmoe.hub.json_file import shown
from localmoe.settings import config_dir, read_toml_text

FILE = "models.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_TEMPLATES = ("v3", "r1", "v3.1", "guide", "jinja")

Check = Callable[[Any], bool]


def user_models(shapes: Collection[str], taken: Collection[str]) -> dict[str, dict[str, Any]]:
    """Checked tables by name; empty without a file. UsageError names file, line and what is allowed."""
    path = config_dir() / FILE
    text = read_toml_text(path)
    if text is None:
        return {}
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{shown(path)} is not valid TOML: {error}", "correct it, or move it away") from error
    for name, table in tables.items():
        _Checker(path, text, name).check(table, shapes, taken)
    return tables


class _Checker:
    """One table of the file."""

    def __init__(self, path: Path, text: str, name: str) -> None:
        self._path, self._lines, self._name = path, text.splitlines(), name

    def check(self, table: Any, shapes: Collection[str], taken: Collection[str]) -> None:
        if not isinstance(table, dict):
            raise self._wrong(self._name, f"{shown(self._name)} is no model", "each model is a table: [my-model]")
        if not _NAME.fullmatch(self._name):
            what = f"'{shown(self._name)}' is no name for a model"
            raise self._wrong(None, what, "use lower-case letters, digits, dots and hyphens")
        if self._name in taken:
            raise self._wrong(None, f"the catalogue has a model {self._name} already", "choose another name")
        rules = _RULES | {"shape": (f"one of {', '.join(shapes)}", lambda value: value in shapes)}
        for key, value in table.items():
            if key not in rules:
                raise self._wrong(key, f"unknown key '{shown(key)}'", _closest(key, rules))
            allowed, is_allowed = rules[key]
            if not is_allowed(value):
                raise self._wrong(key, f"{key} must be {allowed}, not {shown(repr(value))}", f"choose {allowed}")
        if ("repo" in table) == ("folder" in table):
            raise self._wrong(None, f"[{self._name}] needs either repo or folder", 'for one: repo = "org/name"')

    def _wrong(self, key: str | None, what: str, hint: str) -> UsageError:
        return UsageError(f"{shown(self._path)}, line {self._line_of(key)}: {what}", hint)

    def _line_of(self, key: str | None) -> int:
        """Of the key in its table, else of the table, else 1."""
        quoted = re.escape(self._name)
        head = re.compile(rf"""\s*\[\s*["']?{quoted}["']?\s*(\]|\.)""")
        table = next((n for n, line in enumerate(self._lines, 1) if head.match(line)), None)
        if key is None:
            return table or 1
        named = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
        for n, line in enumerate(self._lines[table or 0 :], (table or 0) + 1):
            if named.match(line):
                return n
            if line.lstrip().startswith("["):
                break
        return table or 1


def _closest(key: str, rules: Mapping[str, object]) -> str:
    close = get_close_matches(key.lower().replace("-", "_"), rules, n=1)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(rules)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _number(low: float, high: float) -> Check:
    return lambda value: type(value) in (int, float) and low <= value <= high


_RULES: dict[str, tuple[str, Check]] = {
    "repo": ("org/name", lambda value: isinstance(value, str) and bool(_REPO.fullmatch(value))),
    "folder": ("the path of a folder", _text),
    "title": ("a line of text", _text),
    "revision": ("a branch, tag or commit", _text),
    "format": ("fp8 or bf16", lambda value: value in ("fp8", "bf16")),
    "size_bytes": ("a number of bytes", _count),
    "params": ("a number of parameters", _count),
    "active_params": ("a number of parameters", _count),
    "context": ("a number of tokens", _count),
    "template": (f"one of {', '.join(_TEMPLATES)}", lambda value: value in _TEMPLATES),
    "temperature": ("a number from 0 to 100", _number(0, 100)),
    "top_p": ("a number above 0 and at most 1", lambda value: _number(0, 1)(value) and value > 0),
    "note": ("a line of text", _text),
}

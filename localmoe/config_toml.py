"""Changes config.toml for its user: one setting at a time, and everything else in the file stays as it was."""

import tomllib
from typing import Any

from localmoe.errors import UsageError
from localmoe.settings import RULES, config_file, read_toml_text
from localmoe.settings_file import write_value


def write_setting(name: str, text: str) -> Any:
    """Sets `name` to what `text` says, and returns that value. UsageError for a wrong value or a wrong file."""
    value = read_value(name, text)
    write_value(config_file(), name, value)
    return value


def remove_setting(name: str) -> None:
    """Takes `name` out of the file, so that its default is in force."""
    write_value(config_file(), name, None)


def read_value(name: str, text: str) -> Any:
    """The value that `text` means; UsageError says what is allowed."""
    rule = RULES[name]
    try:
        return rule.read(text.strip())
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name} must be {rule.allowed}, not {text.strip()!r}", f"choose {rule.allowed}") from None


def value_in_file(name: str) -> Any:
    """What config.toml has, whatever is in force; None: nothing."""
    file = config_file()
    try:
        return tomllib.loads(read_toml_text(file) or "").get(name)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not valid TOML: {error}", "correct it, or move it away") from error

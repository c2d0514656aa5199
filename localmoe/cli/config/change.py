"""`localmoe config path`, `set` and `unset`."""

import json
import os
from typing import Any

from localmoe.cli.report import say
from localmoe.cli.streams import to_stdout
from localmoe.config_toml import remove_setting, write_setting
from localmoe.settings import check_key, config_file


def path(*, as_json: bool) -> None:
    """Prints the file's path, there or not."""
    file = config_file()
    to_stdout(json.dumps({"path": str(file), "exists": file.is_file()}) + "\n" if as_json else f"{file}\n")


def set_value(key: str, text: str, *, as_json: bool, quiet: bool) -> None:
    """Writes one value. UsageError for an unknown key or a wrong value, before anything is written."""
    check_key(key)
    value = write_setting(key, text)
    _tell(key, value, f"{key} = {json.dumps(value, ensure_ascii=False)}", as_json=as_json, quiet=quiet)


def unset(key: str, *, as_json: bool, quiet: bool) -> None:
    """Takes one value out; one that is not in the file is out already."""
    check_key(key)
    remove_setting(key)
    _tell(key, None, f"{key} is not set", as_json=as_json, quiet=quiet)


def _tell(key: str, value: Any, what: str, *, as_json: bool, quiet: bool) -> None:
    variable = f"LOCALMOE_{key.upper()}"
    if as_json:
        to_stdout(json.dumps({"path": str(config_file()), "name": key, "value": value}) + "\n")
    if not quiet:
        say(f"{what} in {config_file()}")
        if os.environ.get(variable):
            say(f"{variable} is set and wins over it")

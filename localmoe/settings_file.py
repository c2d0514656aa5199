"""Writing config.toml: one value at a time, whole or not at all, every comment kept where it is."""

import errno
import fcntl
import os
import tomllib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from localmoe.errors import LocalmoeError, OutOfMemoryError, UsageError
from localmoe.settings import read_toml_text

Value = bool | int | float | str


def write_value(path: Path, key: str, value: Value | None) -> None:
    """Sets `key` in the TOML file at `path`, or takes it out with None; `table.key` is a key of a table.

    The file is made if it is not there, and a link to it stays a link. UsageError for a file that is no TOML, which
    stays as it is; LocalmoeError where the system refuses. Whether the value makes sense is the caller's business.
    """
    path = path.resolve()  # the file itself where there is a link: a dotfiles repository has it, for one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            before = read_toml_text(path) or ""
            after = edited(before, key, value, path)
            if after != before:
                _replace(path, after)
    except OSError as error:
        raise _cannot_write(path, error) from error


def edited(text: str, key: str, value: Value | None, path: Path) -> str:
    """`text` with that one change; UsageError when it is no TOML, `path` being for what is said."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        wanted = tomllib.loads(text)
        document = tomlkit.parse(text)
        _change(wanted, key, value)
        _change(document, key, value)
    except (tomllib.TOMLDecodeError, TOMLKitError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "correct it, or move it away") from error
    after = tomlkit.dumps(document)
    if tomllib.loads(after) != wanted:
        raise LocalmoeError(f"{path} cannot be changed without harm to what else is in it", "change it in an editor")
    return after


def _change(table: MutableMapping[str, Any], key: str, value: Value | None) -> None:
    *outer, last = key.split(".")
    for name in outer:
        if value is None and name not in table:
            return
        table = table.setdefault(name, {})
        if not isinstance(table, MutableMapping):
            raise UsageError(f"{key} cannot be set: {name} is no table", "correct it in an editor")
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two programs that change a value each must not undo one another's."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(path: Path, text: str) -> None:
    """On the disk before it has its name: after a crash there is the old file or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            os.fchmod(fd, mode)
            file.write(text.encode())
            file.flush()
            os.fsync(fd)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _cannot_write(path: Path, error: OSError) -> LocalmoeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemoryError(f"the disk of {path.parent} is full", "make room there: the file is as it was")
    return LocalmoeError(f"{path} cannot be written: {error.strerror}", "check who owns it and its folder")

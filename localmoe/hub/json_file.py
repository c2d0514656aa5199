"""Reading JSON that strangers wrote: every way it can be bad is one CheckpointError."""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError

MAX_JSON_BYTES = 256 << 20  # the index of a 1 TB model is about 15 MB


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; CheckpointError when there is no such readable file or it holds anything else."""
    require_file(path)
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{shown(path.name)} is larger than {MAX_JSON_BYTES:,} bytes.", fetch_hint(path))
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return parse_object(data, shown(path.name), fetch_hint(path))


def parse_object(data: bytes, where: str, hint: str) -> dict[str, Any]:
    """The JSON object in `data`: UTF-8, no repeated keys, finite numbers."""
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where} is not UTF-8 text (byte {error.start:,}).", hint) from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}.", hint) from error
    except RecursionError as error:
        raise CheckpointError(f"{where} is nested too deeply to be a model's file.", hint) from error
    except ValueError as error:  # ours from the hooks; integers of more than 4,300 digits
        raise CheckpointError(f"{where} does not make sense: {error}.", hint) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds a JSON {_kind(value)}; an object is expected.", hint)
    return value


def require_file(path: Path) -> os.stat_result:
    """What `stat` says of a regular file; CheckpointError for anything else. Never opens: a pipe would block."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{shown(path.name)} is missing in {shown(path.parent)}.", fetch_hint(path, again=False)
        ) from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "device or pipe"
        raise CheckpointError(f"{shown(path)} is a {kind}; a file is expected.", fetch_hint(path))
    return status


def unreadable(path: Path, error: OSError | ValueError) -> CheckpointError:
    """The error for a file that the system refuses to give."""
    reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return CheckpointError(f"{shown(path)} cannot be read: {reason}.", "check the path, its permissions and the disk.")


def fetch_hint(path: Path, again: bool = True) -> str:
    """How to get one file (again): the exact command where the path is in a Hugging Face cache."""
    for folder in path.parents:
        if folder.name.startswith("models--"):
            repo = shown(folder.name.removeprefix("models--").replace("--", "/", 1))
            if again:
                return f"localmoe verify {repo} --repair fetches only that file."
            return f"localmoe pull {repo} fetches what is missing."
    return f"copy or download {shown(path.name)} {'again' if again else 'into that folder'}."


def shown(text: object) -> str:
    """`text` fit for one line of a terminal: control characters escaped, the middle of a long one left out."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return line if len(line) <= 200 else f"{line[:120]}…{line[-60:]}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key '{shown(key)}' appears twice")
            seen.add(key)
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {shown(text)} is out of range")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _kind(value: object) -> str:
    names = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}
    return names.get(type(value), "null")

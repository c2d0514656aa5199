"""Where engines that others may use are found: a folder of this user alone, with a socket for each."""

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from localmoe.errors import RemoteError

CONNECT_S = 1.0
_LONGEST_ADDRESS = 107  # bytes, in sockaddr_un
_MANY = 256  # connections that wait to be taken
HINT = "set XDG_RUNTIME_DIR to a folder of your own"
_numbers = count()


def runtime_folder() -> Path:
    """XDG_RUNTIME_DIR/localmoe, or a folder in the temporary one; made if need be. RemoteError when it is not private.

    A runtime directory that is another user's, as after `su`, is left alone.
    """
    user = os.geteuid()
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    own = base.is_absolute() and _owner(base) == user
    folder = base / "localmoe" if own else Path(tempfile.gettempdir()) / f"localmoe-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise RemoteError(f"{folder} cannot be made: {error.strerror}", HINT) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
        raise RemoteError(f"{folder} is not a folder of this user", HINT)
    if found.st_mode & 0o077:
        raise RemoteError(f"others may enter {folder}", f"chmod 700 {folder}")
    return folder


def offer(folder: Path, key: str) -> tuple[socket.socket, Path]:
    """A socket that listens under a new name, for this user only. OSError when that cannot be.

    Under its name it listens already: who finds a name where nothing does may take it away.
    """
    path = folder / f"{key}.{os.getpid()}.{next(_numbers)}.sock"
    hidden = path.with_suffix(".new")
    hidden.unlink(missing_ok=True)  # of a process that had this number before
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(server.fileno(), 0o600)  # what bind makes has this mode from the start
        _with_address(hidden, server.bind)
        server.listen(_MANY)
        hidden.rename(path)
    except BaseException:
        server.close()
        hidden.unlink(missing_ok=True)
        raise
    return server, path


def offers(folder: Path, key: str) -> list[Path]:
    """The sockets under that key, the newest first."""
    found = [(info.st_mtime_ns, path) for path in folder.glob(f"{key}.*.sock") if (info := _info(path))]
    return [path for _, path in sorted(found, reverse=True)]


def connect(path: Path) -> socket.socket | None:
    """A connection, or None where nobody listens any more: that name is then taken away. OSError, TimeoutError."""
    before = _info(path)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(CONNECT_S)
    try:
        _with_address(path, client.connect)
    except (ConnectionRefusedError, FileNotFoundError):
        client.close()
        if before and (now := _info(path)) and now.st_ino == before.st_ino:
            path.unlink(missing_ok=True)  # its process was killed
        return None
    except BaseException:
        client.close()
        raise
    client.settimeout(None)
    return client


def _with_address(path: Path, use: Callable[[str], object]) -> None:
    """Calls `use` with an address of `path`, which may be longer than an address can be."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        use(str(path))
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        use(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _owner(path: Path) -> int | None:
    info = _info(path)
    return info.st_uid if info else None


def _info(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None

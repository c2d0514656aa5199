"""The kernel's small text files, below any root so that a recorded tree can stand for a machine."""

import os
import stat
from pathlib import Path

MOST_BYTES = 16 << 20  # the largest such file, /proc/cpuinfo, has about 2 KB a CPU
MOST_NUMBER = (1 << 64) - 1


def read_bytes(root: str | Path, path: str) -> bytes:
    """The bytes of /`path` below `root`; OSError or ValueError when they cannot be read. Never waits."""
    descriptor = os.open(inside(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe or a device could keep us
            raise OSError("it is not a file")
        pieces, left = list[bytes](), MOST_BYTES
        while left and (piece := os.read(descriptor, min(left, 1 << 16))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def read(root: str | Path, path: str) -> str | None:
    """The text of /`path` below `root`; None when it cannot be read."""
    try:
        return read_bytes(root, path).decode(errors="replace")
    except (OSError, ValueError):
        return None


def read_line(root: str | Path, path: str) -> str | None:
    """Its text without surrounding whitespace; None when it cannot be read or is empty."""
    return (read(root, path) or "").strip() or None


def read_int(root: str | Path, path: str) -> int | None:
    """Its text as a number; None when it is none."""
    return to_int(read(root, path))


def why_not(root: str | Path, path: str, missing: str = "") -> str:
    """Why /`path` says nothing; `missing` is what was looked for in it."""
    try:
        read_bytes(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return f"no {path}"
    except PermissionError:
        return f"{path} may not be read by this user"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    return f"no {missing} in {path}" if missing else f"what {path} says is not understood"


def exists(root: str | Path, path: str) -> bool:
    """Whether /`path` is there; False too where that cannot be seen."""
    try:
        return os.path.exists(inside(root, path))  # noqa: PTH110 - pathlib's raises where it may not look
    except ValueError:
        return False


def names(root: str | Path, path: str) -> list[str]:
    """What lies in the folder /`path`, sorted; empty when it cannot be listed."""
    try:
        return sorted(os.listdir(inside(root, path)))  # noqa: PTH208 - hundreds of them: plain names suffice
    except (OSError, ValueError):
        return []


def link_name(root: str | Path, path: str) -> str | None:
    """The last part of where the link /`path` points to; None when it is no link."""
    try:
        return Path(os.readlink(inside(root, path))).name or None  # noqa: PTH115
    except (OSError, ValueError):
        return None


def inside(root: str | Path, path: str) -> str:
    """Where /`path` lies below `root`."""
    return f"{str(root).rstrip('/')}/{path.lstrip('/')}"


def to_int(text: str | None) -> int | None:
    """`text` as a number of at most 64 bits; None when it is none."""
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if -MOST_NUMBER <= number <= MOST_NUMBER else None


def pairs(text: str | None, separator: str | None = None) -> dict[str, str]:
    """Lines of key, separator, value."""
    parts = (line.split(separator, 1) for line in (text or "").splitlines())
    return {p[0].strip(): p[1].strip() for p in parts if len(p) == 2}


def kilobytes(fields: dict[str, str], key: str) -> int | None:
    """The bytes of a field such as "24684084 kB"."""
    number = to_int(fields.get(key, "").removesuffix("kB"))
    return None if number is None or number < 0 else number * 1024


def to_list(text: str | None) -> tuple[int, ...]:
    """Numbers of a kernel list such as "0-3,8"; empty when it is none."""
    numbers: list[int] = []
    for part in (text or "").strip().split(","):
        first, _, last = part.partition("-")
        low, high = to_int(first), to_int(last or first)
        if low is None or high is None or not low <= high < 1 << 16 or len(numbers) >= 1 << 16:
            return ()
        numbers.extend(range(low, high + 1))
    return tuple(numbers)


def in_brackets(text: str | None) -> str | None:
    """The chosen word of "always [madvise] never"."""
    _, bracket, rest = (text or "").partition("[")
    return rest.partition("]")[0].strip() or None if bracket else None

"""The kernel's small text files, below any root so that a recorded tree can stand for a machine."""

from pathlib import Path


def read(root: str | Path, path: str) -> str | None:
    """The text of /`path` below `root`; None when it cannot be read."""
    try:
        return (Path(root) / path.lstrip("/")).read_text(errors="replace")
    except (OSError, ValueError):
        return None


def read_line(root: str | Path, path: str) -> str | None:
    """Its text without surrounding whitespace; None when it cannot be read or is empty."""
    return (read(root, path) or "").strip() or None


def read_int(root: str | Path, path: str) -> int | None:
    """Its text as a number; None when it is none."""
    return to_int(read(root, path))


def to_int(text: str | None) -> int | None:
    """`text` as a number; None when it is none."""
    try:
        return int(text or "")
    except ValueError:
        return None


def pairs(text: str | None, separator: str | None = None) -> dict[str, str]:
    """Lines of key, separator, value."""
    parts = (line.split(separator, 1) for line in (text or "").splitlines())
    return {p[0].strip(): p[1].strip() for p in parts if len(p) == 2}


def kilobytes(fields: dict[str, str], key: str) -> int | None:
    """The bytes of a field such as "24684084 kB"."""
    number = to_int(fields.get(key, "").removesuffix("kB"))
    return None if number is None else number * 1024


def to_list(text: str | None) -> tuple[int, ...]:
    """Numbers of a kernel list such as "0-3,8"; empty when it is none."""
    numbers: list[int] = []
    for part in (text or "").strip().split(","):
        first, _, last = part.partition("-")
        low, high = to_int(first), to_int(last or first)
        if low is None or high is None or not low <= high < 1 << 16:
            return ()
        numbers.extend(range(low, high + 1))
    return tuple(numbers)

"""What is mounted where, from /proc/self/mountinfo."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from localmoe.hardware import files


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    device: str  # "259:2"; "0:41" where no block device is behind it
    root: str  # the part of the filesystem that is mounted
    point: str
    filesystem: str
    source: str
    options: tuple[str, ...]


def mounts(root: str) -> tuple[Mount, ...]:
    """All mounts, later ones last; empty when they cannot be read."""
    lines = (files.read(root, "/proc/self/mountinfo") or "").splitlines()
    return tuple(mount for line in lines if (mount := _parse(line)))


def mount_of(root: str, path: Path) -> Mount | None:
    """The mount that holds /`path`: the longest mount point above it, the last one of those."""
    above = [m for m in mounts(root) if PurePosixPath(path).is_relative_to(m.point)]
    return max(reversed(above), key=lambda m: len(PurePosixPath(m.point).parts), default=None)


def _parse(line: str) -> Mount | None:
    left, dash, right = line.partition(" - ")
    front, back = left.split(" "), right.split(" ")
    if not dash or len(front) < 5 or len(back) < 3:
        return None
    return Mount(front[2], _plain(front[3]), _plain(front[4]), back[0], _plain(back[1]), tuple(back[2].split(",")))


def _plain(text: str) -> str:
    """Spaces, tabs, newlines and backslashes are written as octal escapes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text

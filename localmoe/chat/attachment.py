"""Text files that a message brings along: `@path` in it names them, and their text stands behind it in marks."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from mimetypes import guess_type
from pathlib import Path

from localmoe.errors import UsageError

MAX_BYTES = 4_000_000  # about a million tokens: more than any model here reads
_MENTION = re.compile(r"""(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"'`@][^\s]*))""")
_PATH = re.compile(r"[\w./~+\-]+")
_STOPS = ".,;:!?)]}'\""
_SECTION = re.compile(r'\n*^<(?P<tag>file\d*) path="(?P<name>[^"\n]*)">\n(?P<text>.*?)\n?</(?P=tag)>$', re.S | re.M)


@dataclass(frozen=True, slots=True)
class Mention:
    """`@path` at `start` to `end` of a text; `name` is the path as it was written."""

    start: int
    end: int
    name: str

    @property
    def path(self) -> Path:
        """Where that is; ~ is the user's home."""
        return Path(self.name).expanduser()


@dataclass(frozen=True, slots=True)
class Section:
    """A file's text within a message, marks included, at `start` to `end`."""

    start: int
    end: int
    name: str
    text: str


def mentions(text: str) -> tuple[Mention, ...]:
    """The files that `text` names: those that are there, and those that look meant; @dataclass is none."""
    return tuple(mention for match in _MENTION.finditer(text) if _is_meant(mention := _mention(match)))


def attach(text: str) -> str:
    """`text` with the files it names behind it; UsageError for the first that cannot be attached."""
    named = mentions(text)
    parts = [_without_marks(text, named)]
    for name in dict.fromkeys(mention.name for mention in named):
        parts.append(section_of(name, read_text(Path(name).expanduser())))
    return "\n\n".join(parts)


def read_text(path: Path) -> str:
    """The text in the file at `path`; UsageError when there is none to be read."""
    try:
        data = _read(path)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", _near(path)) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{path} cannot be read: {reason}", "check its permissions") from None
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise _no_text(path) from None
    if "\0" in text:
        raise _no_text(path)
    return text.replace("\r\n", "\n")


def section_of(name: str, text: str) -> str:
    """`text` between marks with its name; the tag is one that the text does not hold."""
    tag, number = "file", 1
    while f"</{tag}>" in text:
        number += 1
        tag = f"file{number}"
    safe = name.replace('"', "'")
    return f'<{tag} path="{safe}">\n{text.removesuffix(chr(10))}\n</{tag}>'


def sections(text: str) -> tuple[Section, ...]:
    """The files that `text` brings along."""
    return tuple(Section(m.start(), m.end(), m["name"], m["text"]) for m in _SECTION.finditer(text))


def completions(begun: str, limit: int = 200) -> list[str]:
    """Paths that begin with `begun`, folders with a slash at their end and before files; none where nothing is."""
    folder, _, last = begun.rpartition("/")
    place = Path(f"{folder}/" if "/" in begun else ".").expanduser()
    try:
        with os.scandir(place) as entries:
            found = [_entry_name(entry) for entry in _some(entries, 5_000)]
    except OSError:
        return []
    shown = [name for name in found if last.startswith(".") or not name.startswith(".")]
    fitting = [name for name in shown if name.lower().startswith(last.lower())]
    prefix = f"{folder}/" if "/" in begun else ""
    return [prefix + name for name in sorted(fitting, key=lambda name: (not name.endswith("/"), name.lower()))[:limit]]


def as_mention(name: str) -> str:
    """What names the file `name` in a text."""
    return f'@"{name}"' if re.search(r"\s", name) or name[-1:] in _STOPS else f"@{name}"


def _mention(match: re.Match[str]) -> Mention:
    if match["quoted"]:
        return Mention(match.start(), match.end(), match["quoted"])
    name = match["plain"]
    if not _is_there(name):
        name = name.rstrip(_STOPS) or name
    return Mention(match.start(), match.start() + 1 + len(name), name)


def _is_meant(mention: Mention) -> bool:
    name = mention.name
    if _is_there(name):
        return True
    if not _PATH.fullmatch(name):
        return " " in name  # it was in quotes
    return "/" in name or guess_type(name)[0] is not None or bool(_nearest(mention.path))


def _is_there(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _without_marks(text: str, named: tuple[Mention, ...]) -> str:
    """`text` with each file's name where `@name` was: sent again, it must not be attached again."""
    for mention in reversed(named):
        text = text[: mention.start] + mention.name + text[mention.end :]
    return text


def _read(path: Path) -> bytes:
    """At most MAX_BYTES of a regular file: a pipe would block, a device would never end."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is a folder", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is not a regular file", "copy its text to a file, or paste it")
    if status.st_size > MAX_BYTES:
        raise UsageError(
            f"{path} has {status.st_size / 1e6:,.1f} MB; at most {MAX_BYTES / 1e6:g} MB can be attached",
            "attach the part of it that matters",
        )
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


def _no_text(path: Path) -> UsageError:
    return UsageError(f"{path} is not a text file", "only text can be attached: UTF-8, or UTF-16 with its mark")


def _near(path: Path) -> str:
    near = _nearest(path)
    return f"did you mean {near}?" if near else "a path begins where localmoe was started, or with / or ~"


def _nearest(path: Path) -> str:
    """A file beside `path` with almost its name, or nothing."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in _some(entries, 5_000)]
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.8)
    return str(path.parent / close[0]) if close else ""


def _some(entries: Iterator[os.DirEntry[str]], limit: int) -> Iterator[os.DirEntry[str]]:
    """A folder can be endless to who waits for it."""
    return (entry for _, entry in zip(range(limit), entries, strict=False))


def _entry_name(entry: os.DirEntry[str]) -> str:
    try:
        return f"{entry.name}/" if entry.is_dir() else entry.name
    except OSError:
        return entry.name

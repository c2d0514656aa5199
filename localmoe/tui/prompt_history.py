"""What was sent before: Up and Down in the prompt bring it back, also in the next run."""

import json
import os
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 1_000_000  # of one file; then it becomes the old one, and the old one goes
_MOST_LETTERS = 100_000  # of an entry: longer ones are in the chats
_NUM_READ = 2_000  # entries, of both files


class PromptHistory:
    """The texts in order, and a place among them. What was changed in one stays changed until something is sent."""

    def __init__(self, path: Path | None) -> None:
        """Kept at `path`, readable by the user alone; None: only until the program ends."""
        self._path = path
        self._texts: list[str] | None = None  # read when they are first wanted
        self._place = 0  # len(texts): what is being written
        self._changed: dict[int, str] = {}

    def earlier(self, current: str) -> str | None:
        """The text before this one; None where there is none."""
        return self._go(-1, current)

    def later(self, current: str) -> str | None:
        """The text behind this one; None where there is none."""
        return self._go(1, current)

    def add(self, text: str) -> None:
        """`text` was sent. A disk that refuses costs the entry its next run, nothing else."""
        texts = self._read()
        if not texts or texts[-1] != text:
            texts.append(text)
            if self._path and len(text) <= _MOST_LETTERS:
                with suppress(OSError):
                    _append(self._path, text)
        self._place, self._changed = len(texts), {}

    def _go(self, step: int, current: str) -> str | None:
        texts = self._read()
        if not 0 <= self._place + step <= len(texts):
            return None
        self._changed[self._place] = current
        self._place += step
        stored = texts[self._place] if self._place < len(texts) else ""
        return self._changed.get(self._place, stored)

    def _read(self) -> list[str]:
        if self._texts is None:
            files = (_old(self._path), self._path) if self._path else ()
            self._texts = [text for file in files for text in _entries(file)][-_NUM_READ:]
            self._place = len(self._texts)
        return self._texts


def _old(path: Path) -> Path:
    return path.with_name(f"{path.stem}.old{path.suffix}")


def _entries(path: Path) -> list[str]:
    """One JSON string a line; a line that was cut off by a crash is skipped."""
    try:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    texts: list[str] = []
    for line in filter(None, lines):
        with suppress(ValueError):
            if isinstance(text := json.loads(line), str):
                texts.append(text)
    return texts


def _append(path: Path, text: str) -> None:
    """One write at the end, so that two programs do not mix theirs."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileNotFoundError):
        if path.stat().st_size > _MOST_BYTES:
            path.replace(_old(path))
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, (json.dumps(text) + "\n").encode())
    finally:
        os.close(fd)

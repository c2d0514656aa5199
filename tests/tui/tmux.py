"""A program in a real tmux: what a person types, and what the terminal then shows."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

FOUND = shutil.which("tmux")


class Tmux:
    """One session of a server of its own; nothing of the user's tmux is read or touched."""

    def __init__(self, socket: Path, command: str, folder: Path, *, columns: int = 110, rows: int = 32) -> None:
        self._tmux = [FOUND or "tmux", "-S", str(socket), "-f", "/dev/null"]
        size = ["-x", str(columns), "-y", str(rows)]
        self._run("new-session", "-d", *size, "-c", str(folder), command)
        self._run("set-option", "-g", "escape-time", "0")  # Esc is Esc at once

    @property
    def text(self) -> str:
        """What is on the screen."""
        return self._run("capture-pane", "-p")

    def write(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, Escape, C-o, F3."""
        self._run("send-keys", *keys)

    def wait_for(self, wanted: str | Callable[[str], object], limit_s: float = 90.0) -> str:
        """The screen, once it shows what is wanted."""
        is_there = wanted if callable(wanted) else (lambda text: wanted in text)
        deadline = time.monotonic() + limit_s
        while not is_there(text := self.text):
            assert time.monotonic() < deadline, f"never saw {wanted!r} in:\n{text}"
            time.sleep(0.05)
        return text

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

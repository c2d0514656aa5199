"""A real pseudo-terminal with a program in it, and what a person would see on its screen."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pexpect
import pyte

import localmoe

# Programs run away from the checkout, with the package that these tests import: the installed one, if there is one.
PACKAGE = str(Path(localmoe.__file__).parent.parent)


class Terminal:
    """Types and looks; waits for what should come into view."""

    def __init__(
        self,
        program: str,
        arguments: list[str],
        home: Path,
        *,
        columns: int = 100,
        rows: int = 30,
        colours: tuple[str, str] = ("xterm-256color", "truecolor"),  # TERM and COLORTERM
    ) -> None:
        term, colorterm = colours
        environment = {**os.environ, "TERM": term, "COLORTERM": colorterm, "HOME": str(home)}
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            environment.pop(name, None)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        environment["PYTHONPATH"] = PACKAGE
        screen = {"dimensions": (rows, columns), "timeout": 60}
        self._child = pexpect.spawn(program, arguments, env=environment, cwd=str(home), **screen)
        self.raw = b""

    @property
    def process(self) -> int:
        """The program's number."""
        return int(self._child.pid)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(self._screen.display)

    @property
    def cursor(self) -> tuple[int, int]:
        """Where the terminal's own cursor is, and an input method shows what it composes: column, row."""
        return self._screen.cursor.x, self._screen.cursor.y

    def press(self, keys: str) -> None:
        self._child.send(keys.encode())

    def wait_for(self, wanted: str | Callable[[str], object], limit_s: float = 60.0) -> str:
        """The screen, once it shows what is wanted."""
        is_there = wanted if callable(wanted) else (lambda text: wanted in text)
        deadline = monotonic() + limit_s
        while not is_there(self.text):
            assert monotonic() < deadline, f"never saw {wanted!r} in:\n{self.text}"
            assert self._read(), f"ended without {wanted!r}:\n{self.text}"
        return self.text

    def signal(self, number: int) -> None:
        """Sends a signal to the program."""
        self._child.kill(number)

    def close(self) -> None:
        """Ends the program at once if it still runs."""
        if self._child.isalive():
            self._child.kill(signal.SIGKILL)
            self._child.wait()
        self._child.close()

    def end(self) -> int:
        """Waits until the program has left; its exit code."""
        while self._read():
            pass
        self._child.close()
        return int(self._child.exitstatus if self._child.exitstatus is not None else -(self._child.signalstatus or 0))

    def _read(self) -> bool:
        try:
            piece = self._child.read_nonblocking(65536, timeout=0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += piece
        self._stream.feed(piece)
        return True

"""The board of a transfer: a line for each file under way and one for the total, drawn over on a terminal."""

import os
import sys
import time

from localmoe.cli.streams import PROGRESS_EVERY_S, Aside, to_stderr
from localmoe.events import Event
from localmoe.hub.download.progress import Notice, Pulling
from localmoe.tui.printable import printable
from localmoe.tui.transfer_lines import lines

_UP, _CLEAR_BELOW = "\x1b[{}A", "\r\x1b[J"


class Board:
    """Shows events; nothing where stderr is no terminal, except notices."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._aside = Aside(is_quiet=is_quiet)
        self._is_quiet = is_quiet
        self._lines: list[str] = []
        self._drawn_s = 0.0
        self._said = ""

    def wait(self, text: str) -> None:
        """A line that `clear` takes away."""
        self._aside.progress(text)

    def show(self, event: Event) -> None:
        """Progress in place, notices as lines of their own that stay."""
        if self._is_quiet:
            return
        if isinstance(event, Notice):
            self.say(printable(event.text))
        elif isinstance(event, Pulling) and self._aside.is_terminal:
            self._draw(event)

    def say(self, text: str) -> None:
        """A line that stays, once."""
        if self._is_quiet or text == self._said:
            return
        self.clear()
        to_stderr(text + "\n")
        self._said = text

    def clear(self) -> None:
        """Takes the board away."""
        self._aside.clear()
        if self._lines:
            to_stderr(self._back(_terminal_size()[0]) + _CLEAR_BELOW)
        self._lines, self._drawn_s = [], 0.0

    def _draw(self, event: Pulling) -> None:
        now = time.monotonic()
        if now - self._drawn_s < PROGRESS_EVERY_S:
            return
        columns, rows = _terminal_size()
        back = self._back(columns)
        self._lines, self._drawn_s = lines(event, columns - 1, rows - 1), now
        to_stderr(back + _CLEAR_BELOW + "".join(line + "\n" for line in self._lines))

    def _back(self, columns: int) -> str:
        """To where the board begins, also after the terminal became narrower and broke its lines."""
        rows = sum(max(1, -(-len(line) // columns)) for line in self._lines)
        return _UP.format(rows) if rows else ""


def _terminal_size() -> tuple[int, int]:
    try:
        found = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return 80, 24
    return found.columns or 80, found.lines or 24

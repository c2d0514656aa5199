"""The three streams of a process: what comes in, what may go to stdout, and what a terminal shows on the side."""

import os
import sys
import time

from localmoe.errors import LocalmoeError, UsageError

PROGRESS_EVERY_S = 0.1
_CLEAR_LINE = "\r\x1b[K"


class PipeClosedError(Exception):
    """Nobody reads stdout any more. Not an OSError: typer would take that for a failure."""


def to_stdout(text: str) -> None:
    """Writes and flushes `text`, in the stream's encoding as far as that goes."""
    if sys.stdout is None:
        raise LocalmoeError("stdout is closed", "leave it open, or send it to a file")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosedError from error
    except OSError as error:
        raise LocalmoeError(f"stdout cannot be written: {error.strerror}", "is the disk full?") from error


def to_stderr(text: str) -> None:
    """Writes `text` if anybody listens: what is said on the side must not end a run."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def piped_text() -> str:
    """What stdin brings, or "" when it is a terminal or closed. UsageError when it is not UTF-8."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at {error.start:,}"
        raise UsageError(
            f"stdin is not UTF-8 text ({where})", "convert it first: iconv -f latin1 -t utf-8, for one"
        ) from error
    except OSError as error:
        raise UsageError(f"stdin cannot be read: {error.strerror}", "close it with </dev/null") from error


class Aside:
    """stderr beside the answer: progress on one line that goes away, and dim text, both only on a terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        can_draw = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.is_terminal = can_draw and not is_quiet
        self._is_coloured = self.is_terminal and not os.environ.get("NO_COLOR")
        self._drawn_s = 0.0
        self._has_progress = False

    def progress(self, text: str) -> None:
        """Shows `text` instead of the last progress, ten times a second at most."""
        now = time.monotonic()
        if not self.is_terminal or now - self._drawn_s < PROGRESS_EVERY_S:
            return
        self._drawn_s, self._has_progress = now, True
        to_stderr(_CLEAR_LINE + text[: self._width() - 1])

    def clear(self) -> None:
        """Takes the progress away."""
        if self._has_progress:
            to_stderr(_CLEAR_LINE)
        self._has_progress, self._drawn_s = False, 0.0

    def line(self, text: str) -> None:
        """One line of its own."""
        self.clear()
        to_stderr(text + "\n")

    def dim(self, text: str) -> None:
        """Text that goes on where the last one ended."""
        self.clear()
        to_stderr(f"\x1b[2m{text}\x1b[22m" if self._is_coloured else text)

    def _width(self) -> int:
        try:
            return os.get_terminal_size(sys.stderr.fileno()).columns or 80  # 0: the terminal does not say
        except OSError:
            return 80

"""How a run ends: two lines on stderr for what went wrong, and the exit code."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from localmoe.cli.streams import PipeClosedError, to_stderr
from localmoe.errors import CancelledError, LocalmoeError, OutOfMemoryError

INTERRUPTED = CancelledError.exit_code


def run(command: Callable[[], object]) -> int:
    """Runs `command` and returns the exit code; what went wrong is on stderr."""
    try:
        command()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except PipeClosedError:  # whoever read has read enough
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except LocalmoeError as error:
        return _say(error)
    except MemoryError as error:
        return _say(_from(error, OutOfMemoryError("there is not enough memory", "close other programs")))
    except Exception as error:  # noqa: BLE001 - the last door: every other error is ours to fix, not the user's to read
        return _say(_from(error, _unexpected(error)))
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process. After an interrupt nothing is waited for: threads may be in the middle of a read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: too late to interrupt
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # closed: point it elsewhere, or Python complains at exit
        _forget_stdout()
    if code == INTERRUPTED:
        os._exit(code)
    sys.exit(code)


def say(message: str, hint: str = "") -> None:
    """The two lines."""
    to_stderr(f"localmoe: {message}\n" + (f"hint: {hint}\n" if hint else ""))


def _say(error: LocalmoeError) -> int:
    if is_debugging():
        import traceback

        to_stderr("".join(traceback.format_exception(error)))
    say(error.message, error.hint)
    return error.exit_code


def _from(cause: BaseException, error: LocalmoeError) -> LocalmoeError:
    error.__cause__ = cause
    return error


def _unexpected(error: Exception) -> LocalmoeError:
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    hint = "the traceback is above" if is_debugging() else "run it again with LOCALMOE_DEBUG=1 to see the traceback"
    return LocalmoeError(f"something unexpected went wrong ({what})", hint)


def is_debugging() -> bool:
    """Whether LOCALMOE_DEBUG asks for tracebacks."""
    return os.environ.get("LOCALMOE_DEBUG", "0") not in ("", "0")


def _forget_stdout() -> None:
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

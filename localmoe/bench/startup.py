"""Suite startup: how long until something is seen, beside the barest program of the same libraries.

Runs are paired, one of each in turn, so that whatever else the machine does hits both. Both run from bytecode, as
installed programs do: in a checkout, and where Python may not write any, its compiler would be measured.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

from localmoe.bench.rows import Listener, Row
from localmoe.bench.terminal import Terminal
from localmoe.errors import LocalmoeError

NUM_PAIRS = {"help": 11, "first-paint": 7}
PAINT_S = 60.0  # a chat that shows no prompt by then never will
PROMPT = "❯".encode()
_TYPER, _TEXTUAL = "a bare typer program", "a bare Textual program"

LOCALMOE = "from localmoe.cli import main; main()"
BARE_TYPER = """
import typer
app = typer.Typer(rich_markup_mode=None)
@app.command()
def main(name: str = "you") -> None:
    "Say hello."
app()
"""
BARE_TEXTUAL = """
from textual.app import App
from textual.widgets import Input, Static
class Bare(App):
    def compose(self):
        yield Static("❯ ")
        yield Input()
Bare().run()
"""


def measure(model: str | None, listener: Listener) -> Iterator[Row]:
    """The rows `help` and `first-paint`; without a `model`, the chat opens as it does for anybody."""
    arguments = ("chat", "-m", model) if model else ()
    with TemporaryDirectory() as folder:
        bytecode = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        listener.progress("help: localmoe --help and a bare typer program, in turn")
        yield _row("help", lambda: help_s(LOCALMOE, bytecode), lambda: help_s(BARE_TYPER, bytecode), _TYPER)
        listener.progress("first-paint: the chat and a bare Textual program, in turn")
        ours, bare = partial(paint_s, LOCALMOE, *arguments), partial(paint_s, BARE_TEXTUAL)
        yield _row("first-paint", lambda: ours(environment=bytecode), lambda: bare(environment=bytecode), _TEXTUAL)


def _row(case: str, ours: Callable[[], float], bare: Callable[[], float], against: str) -> Row:
    """Medians in seconds; the ratio is the median of the pairs' ratios."""
    ours(), bare()  # what is compiled and read from disk for the first time is not what is measured
    pairs = [(ours(), bare()) for _ in range(NUM_PAIRS[case])]
    value, reference = (median(side) for side in zip(*pairs, strict=True))
    return Row("startup", case, "s", value, "s", reference, median(a / b for a, b in pairs), against=against)


def help_s(program: str, environment: Mapping[str, str] | None = None) -> float:
    """Seconds that `program --help` takes, with `environment` over this process's."""
    command, own = [sys.executable, "-c", program, "--help"], {**os.environ, **(environment or {})}
    start_s = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=own)
    if done.returncode:
        raise LocalmoeError("a program that was to be measured failed", done.stderr.decode(errors="replace")[-200:])
    return time.perf_counter() - start_s


def paint_s(program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> float:
    """Seconds until `program` shows its prompt on a terminal."""
    start_s = time.perf_counter()
    with closing(Terminal(program, *arguments, environment=environment)) as terminal:
        if not terminal.shows(lambda seen: PROMPT in seen, PAINT_S):
            raise LocalmoeError("the chat did not show its prompt", "run `localmoe chat` to see why")
        return time.perf_counter() - start_s

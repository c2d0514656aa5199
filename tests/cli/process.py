"""Runs `localmoe` as a process of its own, with a home of its own, and with a script for an engine where asked."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import localmoe

MAIN = "from localmoe.cli import main; main()"
SCRIPTED = """
from localmoe.cli import opening
from localmoe.engine.scripted import ScriptedEngine
from localmoe.engine.script import Script
from localmoe.errors import *
def open_engine(settings, on_event, cancelled=lambda: False):
    return ScriptedEngine([{script}], time_scale={time_scale}, on_event=on_event)
opening.open_engine = open_engine
"""


def scripted(script: str, time_scale: float = 0.0) -> str:
    """A program: `localmoe` whose engine says `script`, a Python expression."""
    return SCRIPTED.format(script=script, time_scale=time_scale) + MAIN


class Home:
    """A user's home, empty at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOCALMOE_", "XDG_", "HF_"))}
        checkout = str(Path(localmoe.__file__).resolve().parent.parent)
        self.env = {**kept, "HOME": str(folder), "PYTHONPATH": checkout, "TERM": "xterm-256color"}
        self.env["XDG_RUNTIME_DIR"] = str(folder)  # no chat of another test answers here

    def run(
        self, *arguments: str, program: str = MAIN, stdin: bytes = b"", closed: int | None = None, **env: str
    ) -> subprocess.CompletedProcess:
        """Waits for the end. stdout and stderr are pipes, or one of the three streams is closed."""
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            input=stdin,
            capture_output=True,
            env={**self.env, **env},
            cwd=self.folder,
            timeout=60,
            preexec_fn=None if closed is None else lambda: os.close(closed),
        )

    def start(self, *arguments: str, program: str = MAIN, **streams) -> subprocess.Popen:
        """Does not wait."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=self.env,
            cwd=self.folder,
            start_new_session=True,
            **streams,
        )

    def run_with_terminal(self, *arguments: str, program: str, **env: str) -> tuple[int, bytes, str]:
        """Exit code, stdout from a pipe, and what a terminal got as stderr."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**self.env, **env},
            cwd=self.folder,
        )
        os.close(theirs)
        seen = b""
        while piece := _read(ours):
            seen += piece
        os.close(ours)
        stdout, _ = process.communicate(timeout=60)
        return process.returncode, stdout, seen.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""

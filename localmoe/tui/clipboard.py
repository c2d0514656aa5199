"""The system's clipboard by its own tools, beside OSC 52, which not every terminal obeys."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_TOOL_S = 2.0  # a tool that hangs is given up
_TOOLS: tuple[
    tuple[str, tuple[str, ...]], ...
] = (  # what must be set in the environment, and the command that reads the text
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard", "-in")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("WSL_DISTRO_NAME", ("clip.exe",)),
    ("TMUX", ("tmux", "load-buffer", "-w", "-")),
)

_QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def tools(environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The commands that can take a text here; one for a display, and tmux beside it."""
    known = (*_TOOLS, ("HOME", ("pbcopy",))) if sys.platform == "darwin" else _TOOLS
    found = [command for name, command in known if environ.get(name) and shutil.which(command[0], path=environ["PATH"])]
    displays = [command for command in found if command[0] != "tmux"]
    return displays[:1] + [command for command in found if command[0] == "tmux"]


def hand_over(text: str, environ: Mapping[str, str]) -> None:
    """Gives `text` to every tool that is there. Some of them stay in the background to serve it: they keep no pipe."""
    for command in tools(environ):
        with suppress(OSError, subprocess.SubprocessError):
            encoding = "utf-16-le" if command[0] == "clip.exe" else "utf-8"
            subprocess.run(command, input=text.encode(encoding, "replace"), timeout=_TOOL_S, check=False, **_QUIET)

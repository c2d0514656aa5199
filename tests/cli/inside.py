"""Runs `localmoe` in this process: as `process.Home` does, without the second that a start takes."""

import contextlib
import io
import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from localmoe.cli.report import run


class Inside:
    """A user's home; stdin, stdout and stderr are no terminals."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in [name for name in os.environ if name.startswith(("LOCALMOE_", "XDG_", "HF_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        monkeypatch.setenv("HF_HOME", str(folder / "hf"))
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.chdir(folder)

    def run(self, *arguments: str) -> CompletedProcess:
        from localmoe.cli.doors import app

        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(lambda: app(list(arguments), prog_name="localmoe"))
        return CompletedProcess(arguments, code, out.buffer.getvalue(), err.buffer.getvalue())

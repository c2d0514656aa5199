"""The prompt in the user's own editor: the screen is given away meanwhile, and engine and history go on."""

import os
import shlex
import shutil
import signal
import subprocess
from asyncio import to_thread
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from textual.app import App, SuspendNotSupported

from localmoe.errors import LocalmoeError, UsageError

_USUAL = ("nano", "vi", "vim", "emacs")


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """$VISUAL, $EDITOR, or one that most machines have. UsageError where there is none, or it cannot be read."""
    for variable in ("VISUAL", "EDITOR"):
        if text := environ.get(variable, "").strip():
            try:
                return shlex.split(text)
            except ValueError as error:
                raise UsageError(f"${variable} cannot be read: {error}", f"set it: export {variable}=nano") from None
    for name in _USUAL:
        if shutil.which(name, path=environ.get("PATH")):
            return [name]
    raise UsageError("there is no editor", "name one: export EDITOR=nano")


async def edit(app: App[Any], text: str) -> str:
    """`text` as the editor left it. LocalmoeError when the editor fails: the text in the prompt is untouched then."""
    command = editor_command(os.environ)
    folder = Path(mkdtemp(prefix="localmoe-"))  # for this user alone
    file = folder / "prompt.md"
    file.write_text(text, encoding="utf-8", newline="")
    try:
        with app.suspend(), app.batch_update(), _interrupts_are_the_editors():
            trouble = await to_thread(_run, [*command, str(file)])  # raised in here, the screen would not come back
    except SuspendNotSupported:
        trouble = LocalmoeError("this terminal cannot be given to an editor", "write in the prompt")
    if trouble:
        shutil.rmtree(folder, ignore_errors=True)
        raise trouble
    return _read(folder, file, text)


def _run(command: list[str]) -> LocalmoeError | None:
    """What went wrong, if anything."""
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        return LocalmoeError(f"{command[0]} cannot be started: {error.strerror}", "set EDITOR to another one")
    return LocalmoeError(f"{command[0]} ended with {code}", "your text is as it was") if code else None


def _read(folder: Path, file: Path, before: str) -> str:
    try:
        text = file.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalmoeError(f"what the editor wrote cannot be read: {error}", f"it is still in {file}") from None
    shutil.rmtree(folder, ignore_errors=True)
    return text if before.endswith("\n") else text.removesuffix("\n")  # editors end every line


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ctrl+C in a cooked terminal reaches every program of the group; a handler, unlike ignoring, is not inherited."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

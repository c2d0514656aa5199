"""`localmoe chat`: the terminal interface."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from localmoe.chat.history.parameters import settings_in
from localmoe.cli import sharing
from localmoe.cli.streams import to_stderr
from localmoe.errors import UsageError
from localmoe.settings import Settings, history_file, load_settings

if TYPE_CHECKING:
    from localmoe.cli.kept import Keeping
    from localmoe.tui.bridge import OpenEngine
    from localmoe.tui.surveyor import Surveyor


def chat(flags: Mapping[str, Any], keeping: "Keeping | None" = None) -> None:
    """Opens the chat and returns when it is left. Without `keeping` it is a new one, and kept."""
    settings = load_settings(flags)
    if not (sys.stdin and sys.stdout and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal", 'for one answer: localmoe ask "..."')
    from localmoe.cli.kept import Keeping, chat_to_write
    from localmoe.tui import run_chat

    keeping = keeping or Keeping()
    begun = chat_to_write(keeping) if keeping.continues else None
    settings = settings_in(begun[0], settings) if begun else settings
    _look_for(settings.model)
    path = history_file() if keeping.save else None
    for line in run_chat(_engine_for, settings, surveyor_for, path, begun):
        to_stderr(f"localmoe: {line}\n")


def _look_for(model: str) -> None:
    """A model that is not here is said before the screen is taken. The one that comes with localmoe is here."""
    if model != Settings().model:
        from localmoe.hub.catalog import resolve

        resolve(model)


def _engine_for(settings: Settings) -> "OpenEngine":
    return lambda on_event: sharing.join_or_lend(settings, on_event)


def surveyor_for(settings: Settings) -> "Surveyor":
    """Doctor for the chat's pages. Its imports take longer than the first paint may: only once they are wanted."""
    from localmoe.cli.doctor.live import LiveSurveyor

    return LiveSurveyor(settings)

"""`localmoe chat`: the terminal interface."""

import sys
from collections.abc import Mapping
from typing import Any

from localmoe.cli import opening
from localmoe.errors import UsageError
from localmoe.settings import load_settings


def chat(flags: Mapping[str, Any]) -> None:
    """Opens the chat and returns when it is left."""
    settings = load_settings(flags)
    if not (sys.stdin and sys.stdout and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal", 'for one answer: localmoe ask "..."')
    from localmoe.hub.catalog import resolve
    from localmoe.tui import run_chat

    resolve(settings.model)  # a model that is not here is said before the screen is taken
    run_chat(lambda on_event: opening.open_engine(settings, on_event), settings)

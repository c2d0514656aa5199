"""The doors: what each command is called and what it takes.

Owns words on stdout and stderr, and exit codes. Computes nothing; imports rooms when a door opens.
"""

import os
import sys


def main() -> None:
    """The `localmoe` command; never returns."""
    from localmoe.cli.report import leave, run

    leave(run(_chat if _is_chat() else _command))


def _is_chat() -> bool:
    """Whether the chat is opened without options: it is worth its own way, without the 0.15 s that typer takes."""
    return sys.argv[1:] in ([], ["chat"]) and "_LOCALMOE_COMPLETE" not in os.environ


def _chat() -> None:
    from localmoe.cli.chat import chat

    chat({})


def _command() -> None:
    from localmoe.cli.doors import app, open_only

    if "_LOCALMOE_COMPLETE" not in os.environ:  # whose words are not in argv
        open_only(sys.argv[1:], app)
    app(prog_name="localmoe")

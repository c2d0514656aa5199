"""`localmoe chats export` and `import`."""

import json
from pathlib import Path

from localmoe.chat.history.documents import document, summary_object, take_chats, take_document
from localmoe.chat.history.history import History
from localmoe.chat.history.markdown import is_markdown, markdown, read_markdown
from localmoe.chat.history.records import Chat
from localmoe.cli.chats.opening import open_history
from localmoe.cli.chats.reading import print_json
from localmoe.cli.report import say
from localmoe.cli.streams import piped_text, to_stdout
from localmoe.errors import LocalmoeError, UsageError

_HINT = "`localmoe chats export` writes such files"


def export(names: tuple[str, ...], *, everything: bool, as_json: bool) -> None:
    """Prints chats as one JSON object or as Markdown, one after the other."""
    if bool(names) == everything:
        raise UsageError("say which chats to export", "localmoe chats export ID, or --all")
    with open_history() as history:
        chats = history.chats() if everything else tuple(map(history.chat, names))
        if as_json:
            to_stdout(json.dumps(document(history, chats), indent=1) + "\n")
        else:
            to_stdout("\n".join(markdown(chat, history.line(chat)) for chat in chats))


def take(files: list[str], *, as_json: bool, quiet: bool) -> None:
    """Adds the chats in `files`, each file whole or not at all, and prints their ids."""
    taken: list[Chat] = []
    with open_history() as history:
        for file in files:
            taken += _take(history, file, _text(file))
    if as_json:
        print_json({"chats": list(map(summary_object, taken))})
    else:
        to_stdout("".join(f"{chat.id}\n" for chat in taken))
    if not quiet:
        say(f"took {len(taken):,} chat{'' if len(taken) == 1 else 's'}")


def _take(history: History, file: str, text: str) -> tuple[Chat, ...]:
    try:
        if is_markdown(text):
            return take_chats(history, read_markdown(text))
        return take_document(history, json.loads(text))
    except ValueError as error:
        raise UsageError(f"{file} is neither JSON nor Markdown of localmoe: {error}", _HINT) from error
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", error.hint) from error


def _text(file: str) -> str:
    if file == "-":
        return piped_text()
    try:
        return Path(file).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalmoeError(f"{file} cannot be read: {error}", _HINT) from error

"""A chat as a file: Markdown to read, JSON with every branch; an existing file is never written over."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localmoe.chat.history.records import Chat, Turn
from localmoe.errors import LocalmoeError, UsageError

if TYPE_CHECKING:
    from localmoe.chat.history.history import History

KINDS = (".md", ".json")


def file_for(argument: str, title: str) -> Path:
    """The file that was named, or one here named as the chat. UsageError when it is there already, or for its kind."""
    path = Path(argument or f"{_slug(title)}.md").expanduser()
    if path.is_dir():
        path = path / f"{_slug(title)}.md"
    if path.suffix not in KINDS:
        raise UsageError(f"{path} is neither .md nor .json", "name one of them: /export chat.md")
    if path.exists():
        raise UsageError(f"{path} is there already", f"choose another name: /export {path.stem}-2{path.suffix}")
    return path


def exported(history: "History", chat: Chat, path: Path) -> str:
    """What is kept of `chat`, in the form that the name of `path` asks for."""
    from localmoe.chat.history.documents import document
    from localmoe.chat.history.markdown import markdown

    kept = history.chat(chat.id)
    if path.suffix == ".json":
        return json.dumps(document(history, (kept,)), ensure_ascii=False, indent=2) + "\n"
    return markdown(kept, history.line(kept))


def exported_turns(chat: Chat, turns: Sequence[Turn], path: Path) -> str:
    """A chat that is not kept, as Markdown."""
    from localmoe.chat.history.markdown import markdown

    if path.suffix == ".json":
        raise UsageError("this chat is not kept, and JSON is made of what is kept", "/export chat.md writes it")
    return markdown(chat, tuple(turns))


def write(path: Path, text: str) -> None:
    """A new file; LocalmoeError where that cannot be."""
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise LocalmoeError(
            f"{path} cannot be written: {error.strerror}", "name another place: /export ~/chat.md"
        ) from None


def _slug(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-")[:40].rstrip("-") or "chat"

"""The branch in use as Markdown: to read anywhere, and to take back in.

A comment before each part says what it is; a text that holds such a comment has a backslash before it.
"""

import json
import re
from dataclasses import replace
from typing import Any

from localmoe.chat.history.history import now_ms
from localmoe.chat.history.parameters import checked
from localmoe.chat.history.records import Chat, Turn, new_id
from localmoe.errors import UsageError

_MARK = re.compile(r"^<!-- localmoe: (chat|system|user|thought|assistant)(?: (\{.*\}))? -->$", re.MULTILINE)
_LOOKS_LIKE_MARK = re.compile(r"^(\\*)(<!-- localmoe: )", re.MULTILINE)
_ESCAPED = re.compile(r"^\\(\\*<!-- localmoe: )", re.MULTILINE)


def markdown(chat: Chat, turns: tuple[Turn, ...]) -> str:
    """`chat` with `turns`, its branch in use."""
    about = {"id": chat.id, "model": chat.model, "parameters": dict(chat.parameters)}
    parts = [f"{_mark('chat', about)}\n# {chat.title}"]
    if chat.system:
        parts.append(_part("system", "System", chat.system))
    for turn in turns:
        if turn.role == "user":
            parts.append(_part("user", "You", turn.text))
            continue
        if turn.reasoning:
            parts.append(_part("thought", "Thought", turn.reasoning, level=3))
        about = {"model": turn.model, "ending": turn.ending}
        parts.append(_part("assistant", turn.model or "Answer", turn.text, about))
    return "\n\n".join(parts) + "\n"


def is_markdown(text: str) -> bool:
    """Whether `markdown` may have written `text`."""
    return text.lstrip("\ufeff\r\n ").startswith("<!-- localmoe: chat")


def read_markdown(text: str) -> list[tuple[Chat, list[Turn]]]:
    """The chats that `markdown` wrote, each as a new one; UsageError when it did not."""
    text = text.replace("\r\n", "\n") + "\n"  # so that the last part ends as the others do
    marks = list(_MARK.finditer(text))
    if not marks or marks[0][1] != "chat":
        raise UsageError("this Markdown is no export of localmoe's chats", "`localmoe chats export` writes such files")
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    chats: list[tuple[Chat, list[Turn]]] = []
    thought = ""
    for mark, end in zip(marks, ends, strict=True):
        about, heading, body = _read_part(mark, text[mark.end() : end])
        if mark[1] == "chat":
            chats.append((_chat(about, heading), []))
            continue
        chat, turns = chats[-1]
        if mark[1] == "system":
            chats[-1] = replace(chat, system=body), turns
        elif mark[1] != "thought":
            turns.append(_turn(mark[1], body, thought, about, place=len(turns)))
        thought = body if mark[1] == "thought" else ""
    return chats


def _mark(kind: str, about: dict[str, Any] | None = None) -> str:
    more = f" {json.dumps(about)}".replace("--", "-\\u002d") if about else ""  # "--" would end the comment
    return f"<!-- localmoe: {kind}{more} -->"


def _part(kind: str, heading: str, text: str, about: dict[str, Any] | None = None, level: int = 2) -> str:
    return f"{_mark(kind, about)}\n{'#' * level} {heading}\n\n" + _LOOKS_LIKE_MARK.sub(r"\\\1\2", text)


def _read_part(mark: re.Match[str], text: str) -> tuple[dict[str, Any], str, str]:
    """What the mark says, the heading and the text behind it."""
    heading, _, body = text.removeprefix("\n").partition("\n\n")
    body = body.removesuffix("\n\n") if body.endswith("\n\n") else body.removesuffix("\n")
    try:
        about = json.loads(mark[2]) if mark[2] else {}
    except ValueError as error:
        raise UsageError(f"the mark {mark[0]!r} cannot be read", "undo what was changed in it") from error
    return about, heading, _ESCAPED.sub(r"\1", body)


def _chat(about: dict[str, Any], heading: str) -> Chat:
    return Chat(
        id=str(about.get("id", "")) or new_id(),
        title=heading.removeprefix("# "),
        model=str(about.get("model", "")),
        parameters=checked(about.get("parameters", {})),
        created_ms=now_ms(),
        updated_ms=now_ms(),
    )


def _turn(kind: str, body: str, thought: str, about: dict[str, Any], place: int) -> Turn:
    parent = place - 1 if place else None
    if kind == "user":
        return Turn("user", body, created_ms=now_ms(), parent=parent)
    ending = about.get("ending")
    return Turn(
        "assistant",
        body,
        thought,
        model=str(about.get("model", "")),
        ending=ending if ending in ("length", "cancelled", "context", "failed", "killed") else "stop",
        created_ms=now_ms(),
        parent=parent,
    )

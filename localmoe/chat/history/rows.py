"""Chats and turns as rows: how they are added and read. Within a transaction that another began."""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from localmoe.chat.history.records import Chat, Turn

_CHAT = ("id", "title", "model", "system", "created_ms", "updated_ms", "deleted_ms")
_TURN = ("role", "text", "reasoning", "model", "ending", "created_ms", "parent")


def add_chat(db: sqlite3.Connection, chat: Chat) -> int:
    """Adds `chat`, without turns; its key."""
    texts = (chat.id, clean(chat.title), clean(chat.model), clean(chat.system), json_of(chat.parameters))
    cursor = db.execute(
        "INSERT INTO chats (id, title, model, system, parameters, created_ms, updated_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*texts, chat.created_ms, chat.updated_ms),
    )
    return _key(cursor)


def add_turn(db: sqlite3.Connection, chat: int, turn: Turn, *, writer: str | None = None) -> int:
    """Adds `turn` behind its parent to the chat with the key `chat`; its own key."""
    texts = (turn.role, clean(turn.text), clean(turn.reasoning), clean(turn.model), turn.ending, writer)
    cursor = db.execute(
        "INSERT INTO turns (chat, parent, role, text, reasoning, model, ending, writer, figures, created_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (chat, turn.parent, *texts, json_of(turn.figures), turn.created_ms),
    )
    return _key(cursor)


def chat_of(row: sqlite3.Row) -> Chat:
    """A row of `chats` with its number of turns."""
    values = {name: row[name] for name in (*_CHAT, "num_turns")}
    return Chat(**values, parameters=json.loads(row["parameters"]))


def turn_of(row: sqlite3.Row) -> Turn:
    """A row of `turns`."""
    return Turn(**{name: row[name] for name in _TURN}, figures=json.loads(row["figures"]), id=row["pk"])


def clean(text: str) -> str:
    """`text` without halves of surrogate pairs, which are no characters and cannot be kept."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def json_of(values: Mapping[str, Any]) -> str:
    """An object as the file has it."""
    return json.dumps(dict(values))


def _key(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid

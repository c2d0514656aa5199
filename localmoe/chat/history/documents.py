"""Chats as JSON: everything that is kept of them, so that what comes back is what went out."""

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from localmoe.chat.history.history import History, now_ms
from localmoe.chat.history.parameters import checked
from localmoe.chat.history.records import ENDINGS, Chat, Turn, new_id
from localmoe.chat.history.rows import add_chat, add_turn
from localmoe.errors import UsageError

FORMAT, VERSION = "localmoe-chats", 1
_HINT = "it must be what `localmoe chats export` wrote"


def document(history: History, chats: tuple[Chat, ...]) -> dict[str, Any]:
    """All of `chats`, with every branch."""
    return {"format": FORMAT, "version": VERSION, "chats": [chat_object(history, chat) for chat in chats]}


def chat_object(history: History, chat: Chat) -> dict[str, Any]:
    """One chat. Turns name their parent, and the chat the last turn in use, by place in `turns`."""
    turns, line = history.tree(chat), history.line(chat)
    places = {turn.id: place for place, turn in enumerate(turns)}
    return {
        **summary_object(chat),
        "system": chat.system,
        "parameters": dict(chat.parameters),
        "last": places[line[-1].id] if line else None,
        "turns": [turn_object(turn, places) for turn in turns],
    }


def summary_object(chat: Chat) -> dict[str, Any]:
    """A chat in a list."""
    return {
        "id": chat.id,
        "title": chat.title,
        "model": chat.model,
        "created": _time(chat.created_ms),
        "updated": _time(chat.updated_ms),
    }


def turn_object(turn: Turn, places: Mapping[int, int]) -> dict[str, Any]:
    """One turn. An answer also has its thought, model, ending and figures."""
    about_answer = {
        "reasoning": turn.reasoning,
        "model": turn.model,
        "ending": turn.ending,
        "figures": dict(turn.figures),
    }
    return {
        "role": turn.role,
        "parent": None if turn.parent is None else places[turn.parent],
        "text": turn.text,
        **(about_answer if turn.role == "assistant" else {}),
        "created": _time(turn.created_ms),
    }


def take_document(history: History, data: Any) -> tuple[Chat, ...]:
    """Adds the chats of a document; UsageError, and nothing added, when it is none."""
    return _take(history, [_read_chat(item) for item in _chats(data)])


def take_chats(history: History, chats: list[tuple[Chat, list[Turn]]]) -> tuple[Chat, ...]:
    """Adds chats of one branch each, whose turns name their parents by place."""
    return _take(history, [(chat, turns, len(turns) - 1 if turns else None) for chat, turns in chats])


def _take(history: History, chats: list[tuple[Chat, list[Turn], int | None]]) -> tuple[Chat, ...]:
    """A chat keeps its id if no other has it; else it becomes a chat beside that one."""
    with history.writing() as db:
        return tuple(_add(history, db, chat, turns, last) for chat, turns, last in chats)


def _read_chat(data: Any) -> tuple[Chat, list[Turn], int | None]:
    """A chat, its turns with their parents' places, and the place of the last one in use."""
    try:
        turns = [_read_turn(item, place) for place, item in enumerate(data["turns"])]
        last = data["last"]
        if last is not None and not 0 <= int(last) < len(turns):
            raise ValueError(f"last is {last}")
        chat = Chat(
            id=str(data["id"]),
            title=" ".join(str(data["title"]).split()),
            model=str(data["model"]),
            system=str(data["system"]),
            parameters=checked(data["parameters"]),
            created_ms=_read_time(data["created"]),
            updated_ms=_read_time(data["updated"]),
        )
        return chat, turns, last
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is no chat of localmoe ({type(error).__name__}: {error})", _HINT) from error


def _chats(data: Any) -> list[Any]:
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("chats"), list):
        raise UsageError("this is no export of localmoe's chats", _HINT)
    if data.get("version") != VERSION:
        raise UsageError(f"this export has version {data.get('version')}; this localmoe reads {VERSION}", "update it")
    return list(data["chats"])


def _read_turn(data: Any, place: int) -> Turn:
    role, parent, ending = data["role"], data["parent"], data.get("ending", "stop")
    if role not in ("user", "assistant") or ending not in ENDINGS or not isinstance(data["text"], str):
        raise ValueError(f"turn {place}")
    if parent is not None and not 0 <= int(parent) < place:
        raise ValueError(f"parent of turn {place}")
    return Turn(
        role=role,
        text=data["text"],
        reasoning=str(data.get("reasoning", "")),
        model=str(data.get("model", "")),
        ending="killed" if ending == "writing" else ending,  # nobody writes it here
        figures=dict(data.get("figures", {})),
        created_ms=_read_time(data["created"]),
        parent=parent,
    )


def _add(history: History, db: sqlite3.Connection, chat: Chat, turns: list[Turn], last: int | None) -> Chat:
    is_taken = bool(history.rows("SELECT 1 FROM chats WHERE id = ?", (chat.id,)))
    kept = replace(chat, id=new_id() if is_taken or not chat.id else chat.id, num_turns=len(turns))
    key, ids = add_chat(db, kept), list[int]()
    for turn in turns:
        parent = None if turn.parent is None else ids[turn.parent]
        ids.append(add_turn(db, key, replace(turn, parent=parent)))
    db.execute("UPDATE chats SET leaf = ? WHERE pk = ?", (None if last is None else ids[last], key))
    return kept


def _time(ms: int) -> str:
    """2026-11-30T05:29:33.120Z."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read_time(text: Any) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else now_ms()

"""Words in titles, questions and answers, each with what stands around it."""

import re

from localmoe.chat.history.history import CHAT_ROW, History
from localmoe.chat.history.records import Chat, Hit
from localmoe.chat.history.rows import chat_of

AROUND = 40  # characters on each side of what was found
_TRIGRAM = 3


def search(history: History, wanted: str, limit: int = 50) -> tuple[Hit, ...]:
    """The turns, and the titles, in which every word of `wanted` occurs; titles first, then the latest turns."""
    words = wanted.split()
    if not words:
        return ()
    titles, turns = _titles(history, words, limit), _turns(history, words, limit)
    return (*titles, *turns)[:limit]


def _titles(history: History, words: list[str], limit: int) -> list[Hit]:
    query = f"{CHAT_ROW} WHERE deleted_ms IS NULL AND {_all_like('title', words)} ORDER BY updated_ms DESC LIMIT ?"
    rows = history.rows(query, (*map(_pattern, words), limit))
    return [_hit(chat_of(row), None, row["title"], words) for row in rows]


def _turns(history: History, words: list[str], limit: int) -> list[Hit]:
    """Words of three characters or more through the index; it knows no shorter ones, for which texts are read."""
    long = [word for word in words if len(word) >= _TRIGRAM]
    short = [word for word in words if len(word) < _TRIGRAM]
    conditions = ["turns.pk IN (SELECT rowid FROM words WHERE words MATCH ?)"] if long else []
    conditions += [_all_like("turns.text", short)] if short else []
    match = (" ".join('"' + word.replace('"', '""') + '"' for word in long),) if long else ()
    found = history.rows(
        "SELECT turns.pk, turns.chat, turns.text FROM turns JOIN chats ON chats.pk = turns.chat"
        f" WHERE deleted_ms IS NULL AND {' AND '.join(conditions)} ORDER BY turns.pk DESC LIMIT ?",
        (*match, *map(_pattern, short), limit),
    )
    chats = {key: _chat(history, key) for key in {row["chat"] for row in found}}
    return [_hit(chats[row["chat"]], row["pk"], row["text"], words) for row in found]


def _chat(history: History, key: int) -> Chat:
    return chat_of(history.rows(f"{CHAT_ROW} WHERE pk = ?", (key,))[0])


def _all_like(column: str, words: list[str]) -> str:
    return " AND ".join([f"{column} LIKE ? ESCAPE '\\'"] * len(words))


def _pattern(word: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", word) + "%"


def _hit(chat: Chat, turn: int | None, text: str, words: list[str]) -> Hit:
    """Around the first word that is found: folding may differ from SQLite's, then it is the text's beginning."""
    found = re.search("|".join(map(re.escape, words)), text, re.IGNORECASE)
    start, end = found.span() if found else (0, 0)
    before, after = text[max(0, start - AROUND) : start], text[end : end + AROUND + (0 if found else AROUND)]
    cut_before, cut_after = start > AROUND, end + len(after) < len(text)
    before, after = (" ".join(f"|{part}|".split())[1:-1] for part in (before, after))
    return Hit(chat, turn, "…" * cut_before + before, text[start:end], after + "…" * cut_after)

"""All chats: kept, found, continued, renamed, deleted and brought back."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localmoe.chat.history.database import Notice, explained, open_database
from localmoe.chat.history.processes import is_alive
from localmoe.chat.history.records import Chat, Turn
from localmoe.chat.history.rows import chat_of, clean, turn_of
from localmoe.chat.history.soundness import note_leaving
from localmoe.errors import ChatNotFoundError, UsageError

KEPT_AFTER_DELETE_MS = 30 * 24 * 3600 * 1000

CHAT_ROW = "SELECT chats.*, (SELECT count(*) FROM turns WHERE turns.chat = chats.pk) AS num_turns FROM chats"
_LINE = """
WITH RECURSIVE line (pk, depth) AS (
    SELECT pk, 0 FROM turns WHERE pk = ?
    UNION ALL
    SELECT turns.parent, depth + 1 FROM line JOIN turns ON turns.pk = line.pk WHERE turns.parent IS NOT NULL
)
SELECT turns.* FROM line JOIN turns ON turns.pk = line.pk ORDER BY depth DESC
"""


class History:
    """The chats in one file, through one connection of one thread. LocalmoeError when the file cannot be used."""

    def __init__(self, path: Path, on_notice: Notice) -> None:
        self.path = path
        self._db = open_database(path, on_notice)
        with explained(path):
            self._close_what_was_killed()
            self._purge_old()

    def close(self) -> None:
        """Ends the connection; the last one out tidies the log away."""
        self._db.close()
        note_leaving(self.path)

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, whole or not at all, taken before anything is read for it."""
        with explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """What `query` reads."""
        with explained(self.path):
            return self._db.execute(query, values).fetchall()

    # Finding

    def chats(self, *, deleted: bool = False, limit: int = -1) -> tuple[Chat, ...]:
        """Those in use, or those deleted and still kept; the latest used first."""
        which = "IS NOT NULL" if deleted else "IS NULL"
        query = f"{CHAT_ROW} WHERE deleted_ms {which} ORDER BY updated_ms DESC, pk DESC LIMIT ?"
        return tuple(map(chat_of, self.rows(query, (limit,))))

    def last(self) -> Chat:
        """The chat used last; ChatNotFoundError when there is none."""
        if not (found := self.chats(limit=1)):
            raise ChatNotFoundError("there is no chat yet", 'begin one: localmoe ask "What can you do?"')
        return found[0]

    def chat(self, name: str, *, deleted: bool = False) -> Chat:
        """The chat whose id is `name` or begins with it. ChatNotFoundError; UsageError when several do."""
        which = "IS NOT NULL" if deleted else "IS NULL"
        query = f"{CHAT_ROW} WHERE substr(id, 1, ?) = ? AND deleted_ms {which} ORDER BY updated_ms DESC LIMIT 9"
        found = [chat_of(row) for row in self.rows(query, (len(name), name.lower()))] if name else []
        exact = [chat for chat in found if chat.id == name.lower()]
        if not found:
            what = "deleted chat" if deleted else "chat"
            raise ChatNotFoundError(f"no {what} is called {name!r}", "localmoe chats list shows them")
        if len(found) > 1 and not exact:
            several = ", ".join(chat.id for chat in found)
            raise UsageError(f"several chats begin with {name!r}", f"which one: {several}")
        return (exact or found)[0]

    def line(self, chat: Chat, *, through: int | None = None) -> tuple[Turn, ...]:
        """The turns of the branch in use, in order; or of the latest branch that has the turn `through`."""
        rows = self.rows("SELECT leaf FROM chats WHERE id = ?", (chat.id,))
        line = self.line_to(rows[0]["leaf"]) if rows else ()
        if through is None or any(turn.id == through for turn in line):
            return line
        return self.line_to(self._latest_leaf(through))

    def use_next_branch(self, chat: Chat) -> tuple[Turn, ...]:
        """Goes on from the next branch of `chat`, the first after the last; its turns."""
        tree, line = self.tree(chat), self.line(chat)
        parents = {turn.parent for turn in tree}
        leaves = [turn.id for turn in tree if turn.id not in parents]
        place = leaves.index(line[-1].id) if line and line[-1].id in leaves else -1
        leaf = leaves[(place + 1) % len(leaves)] if leaves else None
        self.use(chat, leaf)
        return self.line_to(leaf)

    def _latest_leaf(self, turn: int) -> int:
        """Where the branch ends that went on last from `turn`."""
        while rows := self.rows("SELECT max(pk) AS pk FROM turns WHERE parent = ?", (turn,)):
            if rows[0]["pk"] is None:
                break
            turn = rows[0]["pk"]
        return turn

    def line_to(self, leaf: int | None) -> tuple[Turn, ...]:
        """The turns that lead to `leaf`, itself the last."""
        return tuple(map(turn_of, self.rows(_LINE, (leaf,)))) if leaf else ()

    def tree(self, chat: Chat) -> tuple[Turn, ...]:
        """The turns of all branches, each behind its parent."""
        query = "SELECT turns.* FROM turns JOIN chats ON chats.pk = turns.chat WHERE chats.id = ? ORDER BY turns.pk"
        return tuple(map(turn_of, self.rows(query, (chat.id,))))

    # Changing

    def rename(self, chat: Chat, title: str) -> None:
        """Gives `chat` a name; UsageError when it is empty."""
        if not (words := " ".join(clean(title).split())):
            raise UsageError("a chat's name cannot be empty", 'localmoe chats rename ID "A new name"')
        with self.writing() as db:
            db.execute("UPDATE chats SET title = ? WHERE id = ?", (words, chat.id))

    def delete(self, chat: Chat) -> None:
        """Takes `chat` out of sight; for 30 days `restore` brings it back."""
        with self.writing() as db:
            db.execute("UPDATE chats SET deleted_ms = ? WHERE id = ?", (now_ms(), chat.id))

    def restore(self, chat: Chat) -> None:
        """Brings a deleted chat back as it was."""
        with self.writing() as db:
            db.execute("UPDATE chats SET deleted_ms = NULL WHERE id = ?", (chat.id,))

    def forget(self, chat: Chat) -> None:
        """Removes `chat` for good."""
        with self.writing() as db:
            db.execute("DELETE FROM chats WHERE id = ?", (chat.id,))

    def use(self, chat: Chat, leaf: int | None) -> None:
        """Goes on from the branch that ends with `leaf`."""
        with self.writing() as db:
            db.execute("UPDATE chats SET leaf = ? WHERE id = ?", (leaf, chat.id))

    def _close_what_was_killed(self) -> None:
        """Answers whose process is gone end here; those that another process writes right now are left alone."""
        query = "SELECT DISTINCT writer FROM turns WHERE ending = 'writing'"
        dead = [row["writer"] for row in self.rows(query) if not is_alive(row["writer"])]
        if dead:
            with self.writing() as db:
                db.executemany(
                    "UPDATE turns SET ending = 'killed', writer = NULL WHERE ending = 'writing' AND writer IS ?",
                    [(writer,) for writer in dead],
                )

    def _purge_old(self) -> None:
        before_ms = now_ms() - KEPT_AFTER_DELETE_MS
        if self.rows("SELECT 1 FROM chats WHERE deleted_ms < ? LIMIT 1", (before_ms,)):
            with self.writing() as db:
                db.execute("DELETE FROM chats WHERE deleted_ms < ?", (before_ms,))


def now_ms() -> int:
    """The time as history keeps it."""
    return time.time_ns() // 1_000_000

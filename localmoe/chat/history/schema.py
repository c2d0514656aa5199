"""The tables, as the steps that led to them. A step that was released never changes; a new one is added behind it."""

import sqlite3

from localmoe.errors import NotReadyError

_CHATS_AND_TURNS = """
CREATE TABLE chats (
    pk INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    system TEXT NOT NULL,
    parameters TEXT NOT NULL,  -- a JSON object
    leaf INTEGER REFERENCES turns (pk) DEFERRABLE INITIALLY DEFERRED,  -- the last turn of the branch in use
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    deleted_ms INTEGER
);
-- No cascade from parent to child: it would go as deep as a chat is long, and SQLite stops at 1,000.
CREATE TABLE turns (
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    chat INTEGER NOT NULL REFERENCES chats (pk) ON DELETE CASCADE,
    parent INTEGER REFERENCES turns (pk) DEFERRABLE INITIALLY DEFERRED,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    text TEXT NOT NULL,
    reasoning TEXT NOT NULL,
    model TEXT NOT NULL,
    ending TEXT NOT NULL,
    writer TEXT,  -- the process that writes it, while its ending is 'writing'
    figures TEXT NOT NULL,  -- a JSON object
    created_ms INTEGER NOT NULL
);
CREATE INDEX turns_of_chat ON turns (chat);
CREATE INDEX turns_after ON turns (parent);
CREATE INDEX turns_in_writing ON turns (ending) WHERE ending = 'writing';
CREATE INDEX chats_by_leaf ON chats (leaf);  -- or each turn that goes looks through all chats
CREATE INDEX chats_by_use ON chats (updated_ms);
"""

# Trigrams find words in languages that put no spaces between them. A growing answer is indexed once, at its end.
_SEARCH = """
CREATE VIRTUAL TABLE words USING fts5 (text, content = 'turns', content_rowid = 'pk', tokenize = 'trigram');
INSERT INTO words (rowid, text) SELECT pk, text FROM turns WHERE ending <> 'writing';
CREATE TRIGGER turn_added AFTER INSERT ON turns WHEN new.ending <> 'writing' BEGIN
    INSERT INTO words (rowid, text) VALUES (new.pk, new.text);
END;
CREATE TRIGGER turn_unindexed AFTER UPDATE OF text, ending ON turns WHEN old.ending <> 'writing' BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.pk, old.text);
END;
CREATE TRIGGER turn_indexed AFTER UPDATE OF text, ending ON turns WHEN new.ending <> 'writing' BEGIN
    INSERT INTO words (rowid, text) VALUES (new.pk, new.text);
END;
CREATE TRIGGER turn_removed AFTER DELETE ON turns WHEN old.ending <> 'writing' BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.pk, old.text);
END;
"""

MIGRATIONS = (_CHATS_AND_TURNS, _SEARCH)
VERSION = len(MIGRATIONS)
OLDEST_SQLITE = (3, 34, 0)  # the first with trigrams


def migrate(connection: sqlite3.Connection) -> None:
    """Takes the file through the steps it has not seen, each whole or not at all. NotReadyError: it is too new."""
    _check_sqlite(connection)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise NotReadyError(
            f"the chats on this machine were kept by a newer localmoe (format {version}; this one knows {VERSION})",
            "use the newer localmoe; --no-save goes without chats",
        )
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {step} PRAGMA user_version = {number}; COMMIT;")


def _check_sqlite(connection: sqlite3.Connection) -> None:
    options = {name for (name,) in connection.execute("PRAGMA compile_options")}
    if sqlite3.sqlite_version_info < OLDEST_SQLITE or "ENABLE_FTS5" not in options:
        raise NotReadyError(
            f"chats need SQLite 3.34 or newer with FTS5; this Python has {sqlite3.sqlite_version}",
            "install localmoe with another Python, from python.org or uv for one; --no-save goes without chats",
        )

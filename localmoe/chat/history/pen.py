"""Writes one chat down while it happens: each question at once, its answer at most half a second late."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from localmoe.chat.history.history import History, now_ms
from localmoe.chat.history.processes import this_process
from localmoe.chat.history.records import Chat, Ending, Turn, title_of, unread_figure
from localmoe.chat.history.rows import add_chat, add_turn, clean, json_of
from localmoe.events import Event, Failed, Finished, Stats, TextDelta

KEEP_EVERY_S = 0.5
_FIGURES = ("prompt_tokens", "completion_tokens", "thought_tokens", "thought_s", "ttft_s", "decode_tok_s")


class Pen:
    """One chat, from some turn of it on. `line` are the ids of its turns up to where it stands."""

    def __init__(
        self, history: History, chat: Chat, line: tuple[int, ...] = (), clock: Callable[[], float] = monotonic
    ) -> None:
        self.chat = chat
        self.line = list(line)
        self._history = history
        self._clock = clock
        self._question: int | None = None  # that this answer's `ask` added
        self._answer: int | None = None  # its row, while it is written
        self._texts = {"answer": "", "thought": ""}
        self._figures: dict[str, Any] = {}
        self._kept_s = 0.0
        self._is_behind = False  # whether something came that is not in the file yet

    def ask(self, question: str | None, model: str, *, at: int | None = None, unread: int = 0) -> None:
        """Keeps `question` behind the first `at` turns (None: all) and begins its answer by `model`.

        None for `question` begins another answer to the question that stands there. The model does not read the first
        `unread` turns.
        """
        self.finish("cancelled")
        del self.line[len(self.line) if at is None else at :]
        with self._history.writing() as db:
            key = self._chat_key(db, question or "")
            parent, asked = (self.line[-1] if self.line else None), None
            if question is not None:
                parent = asked = add_turn(db, key, Turn("user", question, created_ms=now_ms(), parent=parent))
            turn = Turn("assistant", "", model=model, ending="writing", created_ms=now_ms(), parent=parent)
            answer = add_turn(db, key, turn, writer=this_process())
            db.execute("UPDATE chats SET leaf = ?, updated_ms = ? WHERE pk = ?", (answer, now_ms(), key))
        self._question, self._answer = asked, answer
        self.line += [turn for turn in (asked, answer) if turn is not None]
        self._texts, self._figures = {"answer": "", "thought": ""}, unread_figure(unread)
        self._kept_s, self._is_behind = self._clock(), False

    def configure(self, chat: Chat) -> None:
        """Keeps another system prompt or other parameters; those of a chat without turns come with its first one.

        Another model is kept with the next question to it.
        """
        self.chat = replace(self.chat, model=chat.model, system=chat.system, parameters=chat.parameters)
        with self._history.writing() as db:
            values = (clean(chat.system), json_of(chat.parameters), chat.id)
            db.execute("UPDATE chats SET system = ?, parameters = ? WHERE id = ?", values)

    def hear(self, event: Event) -> None:
        """Takes what the engine says of the answer."""
        if self._answer is None:
            return
        match event:
            case TextDelta():
                self._texts[event.channel] += event.text
                self._is_behind = True
            case Stats():
                self._figures |= _figures(event)
            case Finished():
                self._texts = {"answer": event.text, "thought": event.reasoning}
                self._figures |= _figures(event)
                self.finish(event.reason)
            case Failed():
                self._fail()

    def due_s(self) -> float | None:
        """Seconds until something must be kept; None when all is."""
        return max(0.0, self._kept_s + KEEP_EVERY_S - self._clock()) if self._is_behind else None

    def keep_what_is_due(self) -> None:
        """Writes what came, if half a second has passed since the last time."""
        if self.due_s() == 0.0:
            self._kept_s = self._clock()  # also where it fails: the next try is as late
            self._update("writing")
            self._is_behind = False

    def finish(self, ending: Ending) -> None:
        """The answer, if one is being written, ends so; what came of it stays."""
        if self._answer is not None:
            self._update(ending)
            self._answer, self._is_behind = None, False

    def _fail(self) -> None:
        """The question is taken back. With a part of an answer, both stay as a branch; else nothing does."""
        question, answer = self._question, self._answer
        del self.line[-1 if question is None else -2 :]
        if any(self._texts.values()):
            self.finish("failed")
            return
        self._answer, self._is_behind = None, False
        with self._history.writing() as db:
            leaf = self.line[-1] if self.line else None
            db.execute("UPDATE chats SET leaf = ? WHERE id = ?", (leaf, self.chat.id))
            db.execute("DELETE FROM turns WHERE pk IN (?, ?)", (answer, question))
            empty = "NOT EXISTS (SELECT 1 FROM turns WHERE chat = chats.pk)"
            db.execute(f"DELETE FROM chats WHERE id = ? AND {empty}", (self.chat.id,))

    def _chat_key(self, db: sqlite3.Connection, question: str) -> int:
        """The chat's own row, made with its first question, and with what is in force for each."""
        if row := db.execute("SELECT pk FROM chats WHERE id = ?", (self.chat.id,)).fetchone():
            values = (clean(self.chat.model), clean(self.chat.system), json_of(self.chat.parameters))
            db.execute("UPDATE chats SET model = ?, system = ?, parameters = ? WHERE pk = ?", (*values, row["pk"]))
            return int(row["pk"])
        title = self.chat.title or title_of(question)
        return add_chat(db, replace(self.chat, title=title, created_ms=now_ms(), updated_ms=now_ms()))

    def _update(self, ending: Ending) -> None:
        text, thought = self._texts["answer"], self._texts["thought"]
        writer = this_process() if ending == "writing" else None
        with self._history.writing() as db:
            db.execute(
                "UPDATE turns SET text = ?, reasoning = ?, ending = ?, writer = ?, figures = ? WHERE pk = ?",
                (clean(text), clean(thought), ending, writer, json_of(self._figures), self._answer),
            )


def _figures(event: Stats | Finished) -> dict[str, Any]:
    values = {name: getattr(event, name, None) for name in _FIGURES}
    return {name: value for name, value in values.items() if value is not None}

"""`localmoe chats list`, `show` and `search`."""

import json
from typing import Any

from localmoe.chat.history.documents import chat_object, summary_object
from localmoe.chat.history.records import Chat, Hit, Turn
from localmoe.chat.history.search import search
from localmoe.cli.chats.opening import open_history
from localmoe.cli.report import say
from localmoe.cli.streams import to_stdout
from localmoe.tui.figures import cut, moment
from localmoe.tui.printable import printable

_ROW = "{:<8}  {:<16}  {:>5}  {}"
_TITLE_CELLS = 45
_ALL = -1
_DEFAULT_HITS = 50


def list_chats(number: int | None, *, deleted: bool, as_json: bool, quiet: bool) -> None:
    """Prints a line for each chat."""
    with open_history() as history:
        chats = history.chats(deleted=deleted, limit=number or _ALL)
    if as_json:
        print_json({"chats": [{**summary_object(chat), "turns": chat.num_turns} for chat in chats]})
    elif chats:
        to_stdout("\n".join([_ROW.format("chat", "used last", "turns", "title"), *map(_row, chats)]) + "\n")
    elif not quiet:
        say("there is no deleted chat" if deleted else "there is no chat yet")


def show(name: str, *, as_json: bool) -> None:
    """Prints the branch in use; as JSON all branches."""
    with open_history() as history:
        chat = history.chat(name)
        if as_json:
            print_json(chat_object(history, chat))
            return
        turns = history.line(chat)
    about = f"{chat.id}, {moment(chat.created_ms)}"
    parts = [
        f"# {chat.title}\n\n{about}",
        *([f"## System\n\n{chat.system}"] if chat.system else []),
        *map(_said, turns),
    ]
    to_stdout(printable("\n\n".join(part.rstrip("\n") for part in parts)) + "\n")


def find(words: list[str], number: int | None, *, as_json: bool, quiet: bool) -> None:
    """Prints where the words occur."""
    with open_history() as history:
        hits = search(history, " ".join(words), number or _DEFAULT_HITS)
    if as_json:
        print_json({"hits": list(map(hit_object, hits))})
    elif hits:
        to_stdout("".join(map(_found, hits)))
    elif not quiet:
        say("nothing was found")


def hit_object(hit: Hit) -> dict[str, Any]:
    """One finding as `--json` has it; `in` says whether it is the title or a turn."""
    place = "title" if hit.turn is None else "turn"
    return {"chat": hit.chat.id, "title": hit.chat.title, "in": place} | {
        "before": hit.before,
        "match": hit.match,
        "after": hit.after,
    }


def print_json(data: dict[str, Any]) -> None:
    """One object on stdout."""
    to_stdout(json.dumps(data) + "\n")


def _row(chat: Chat) -> str:
    return _ROW.format(chat.id, moment(chat.updated_ms), chat.num_turns, cut(printable(chat.title), _TITLE_CELLS))


def _said(turn: Turn) -> str:
    who = "You" if turn.role == "user" else turn.model or "Answer"
    how = {"stop": "", "writing": "(still being written)", "killed": "(broken off)", "failed": "(failed)"}
    ending = how.get(turn.ending, "(stopped)" if turn.ending == "cancelled" else f"(cut: {turn.ending})")
    return "\n\n".join(part for part in (f"## {who}", turn.text.strip("\n"), ending) if part)


def _found(hit: Hit) -> str:
    context = "" if hit.turn is None else f"          {printable(hit.before + hit.match + hit.after)}\n"
    return f"{hit.chat.id:<8}  {cut(printable(hit.chat.title), 70)}\n{context}"

"""`localmoe chats rename`, `rm` and `restore`."""

from localmoe.chat.history.documents import summary_object
from localmoe.chat.history.history import History
from localmoe.chat.history.records import Chat
from localmoe.cli.chats.opening import open_history
from localmoe.cli.chats.reading import print_json
from localmoe.cli.report import say
from localmoe.errors import ChatNotFoundError
from localmoe.tui.printable import printable


def rename(name: str, title: str, *, as_json: bool, quiet: bool) -> None:
    """Changes one title."""
    with open_history() as history:
        chat = history.chat(name)
        history.rename(chat, title)
        _tell("renamed", [history.chat(chat.id)], as_json=as_json, quiet=quiet)


def remove(names: list[str], *, forever: bool, as_json: bool, quiet: bool) -> None:
    """Deletes chats: none of them when one is not there."""
    with open_history() as history:
        chats = [_any(history, name) if forever else history.chat(name) for name in names]
        for chat in chats:
            (history.forget if forever else history.delete)(chat)
    back = "" if forever else f"localmoe chats restore {' '.join(chat.id for chat in chats)}"
    _tell("deleted for good" if forever else "deleted", chats, as_json=as_json, quiet=quiet, undo=back)


def restore(names: list[str], *, as_json: bool, quiet: bool) -> None:
    """Brings chats back: none of them when one is not there."""
    with open_history() as history:
        chats = [history.chat(name, deleted=True) for name in names]
        for chat in chats:
            history.restore(chat)
    _tell("restored", chats, as_json=as_json, quiet=quiet)


def _any(history: History, name: str) -> Chat:
    try:
        return history.chat(name)
    except ChatNotFoundError:
        return history.chat(name, deleted=True)


def _tell(what: str, chats: list[Chat], *, as_json: bool, quiet: bool, undo: str = "") -> None:
    if as_json:
        print_json({"chats": list(map(summary_object, chats))})
    if not quiet:
        titles = ", ".join(f'{chat.id} "{printable(chat.title)}"' for chat in chats)
        say(f"{what} {titles}", f"{undo} undoes it, for 30 days" if undo else "")

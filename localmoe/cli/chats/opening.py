"""Where the commands get the history from."""

from localmoe.chat.history.history import History
from localmoe.cli.report import say
from localmoe.settings import history_file


def open_history() -> History:
    """The history of this user; what is to be said about its file goes to stderr."""
    return History(history_file(), say)

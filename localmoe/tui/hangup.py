"""Watches whether the terminal is there: no signal tells of one that does not control this program."""

import os
import signal
import sys
from select import poll
from threading import Event, Thread

LOOK_S = 2.0
LEAVE_S = 10.0  # what leaving may take, when nothing that is drawn is taken any more


def watch_terminal(left: Event) -> None:
    """Sends this program a SIGHUP, from a thread, once its terminal is gone; ends it if `left` is not set soon after.

    Chats are kept as they grow, so nothing is lost. Without a terminal nothing is watched.
    """
    if sys.stdin.isatty():
        Thread(target=_watch, args=(sys.stdin.fileno(), left), name="localmoe-terminal", daemon=True).start()


def _watch(terminal: int, left: Event) -> None:
    hangup = poll()
    hangup.register(terminal, 0)  # it is told unasked
    while not hangup.poll(0):
        if left.wait(LOOK_S):
            return
    os.kill(os.getpid(), signal.SIGHUP)
    if not left.wait(LEAVE_S):
        os._exit(128 + signal.SIGHUP)

"""A few threads for many files: the first error, or a cancel, ends the work of all."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Event as Flag
from threading import Thread

from localmoe.errors import CancelledError

TELL_EVERY_S = 0.2
LEAVE_WITHIN_S = 1.0  # for threads that wait for bytes

Job = Callable[[], None]


def work(jobs: Iterable[Job], num_threads: int, stop: Flag, tell: Callable[[], None]) -> None:
    """Does all jobs and calls `tell` meanwhile. Raises the first error, or CancelledError once `stop` is set.

    Then a thread that waits for bytes may still wait, and does nothing more when it wakes.
    """
    waiting, errors = deque(jobs), list[BaseException]()
    threads = [Thread(target=_worker, args=(waiting, errors, stop), daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not stop.is_set():
            tell()
            _join(threads, TELL_EVERY_S)
    finally:
        if any(thread.is_alive() for thread in threads):
            stop.set()
            _join(threads, LEAVE_WITHIN_S)
    tell()
    if errors:
        raise errors[0]
    if stop.is_set():
        raise CancelledError("stopped")


def _worker(waiting: deque[Job], errors: list[BaseException], stop: Flag) -> None:
    while not stop.is_set():
        try:
            job = waiting.popleft()
        except IndexError:
            return
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised where the work was asked for
            errors.append(error)
            stop.set()


def _join(threads: list[Thread], within_s: float) -> None:
    until_s = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))

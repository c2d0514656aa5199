"""Work away from the screen's thread. A thread that is stuck keeps neither the screen nor the program."""

from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def away(call: Callable[[], T]) -> T:
    """What `call` gives, made in a thread of its own while the screen goes on; what it raises is raised here."""
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()  # from here on a screen that closes does not end it, only forgets it
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=run, name="away", daemon=True).start()
    return await wrap_future(future)

"""Questions that may never be answered: a driver that hangs, a network disk whose server is gone."""

import queue
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def answer_within(seconds: float, question: Callable[[], T]) -> T:
    """What `question` returns or raises; TimeoutError when that takes longer. Its thread is then left to itself."""
    answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except Exception as error:  # noqa: BLE001 - raised again by whoever asked
            answers.put((None, error))

    Thread(target=ask, name="localmoe-probe", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]

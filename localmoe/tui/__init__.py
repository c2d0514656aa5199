"""What is seen: the terminal chat.

Owns the screen, its widgets, keys and themes. Knows an engine by its face and its events only.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localmoe.engine.request import EngineFace
    from localmoe.events import Event
    from localmoe.settings import Settings


def run_chat(open_engine: "Callable[[Callable[[Event], None]], EngineFace]", settings: "Settings") -> None:
    """Shows the chat until it is left.

    `open_engine` is called in a thread while the screen is up; it reports Loading through the callback it gets,
    which raises CancelledError once the chat was left.
    """
    import gc

    from localmoe.tui.app import ChatApp

    gc.freeze()  # what was imported stays: looking through it took 80 ms at each full collection, felt in every key
    app = ChatApp(open_engine, settings)
    try:
        app.run()
    finally:
        app.bridge.close()
        gc.unfreeze()

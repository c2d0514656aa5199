"""What is seen: the terminal chat.

Owns the screen, its widgets, keys and themes. Knows an engine by its face and its events only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from localmoe.chat.history.records import Chat, Turn
    from localmoe.settings import Settings
    from localmoe.tui.paged_app import OpenEngineFor
    from localmoe.tui.surveyor import SurveyorFor

_COLLECT_AFTER = 10_000, 20, 20  # objects, and times: full collections take 30 ms with a chat on the screen


def run_chat(
    open_engine_for: "OpenEngineFor",
    settings: "Settings",
    surveyor_for: "SurveyorFor",
    history: "Path | None" = None,
    begun: "tuple[Chat, tuple[Turn, ...]] | None" = None,
) -> tuple[str, ...]:
    """Shows the chat until it is left: a new one, or the one that has `begun`. Kept in the file `history`, if given.

    `open_engine_for` gives what opens an engine under some settings. That is called in a thread while the screen is up;
    it reports Loading through the callback it gets, which raises CancelledError once the chat was left.
    `surveyor_for` gives who knows this machine. What broke in the chat is raised again once the screen is given back; a
    signal that ended it, as the exit code 128 and its number. Returns a line for each download that was paused.
    """
    import gc
    from threading import Event

    gc.disable()  # imports leave nothing to collect, and looking for it took 18 of their 280 ms
    from localmoe.tui.app import ChatApp
    from localmoe.tui.hangup import watch_terminal

    gc.freeze()  # what was imported stays: looking through it took 80 ms at each full collection, felt in every key
    gc.enable()
    thresholds = gc.get_threshold()
    gc.set_threshold(*_COLLECT_AFTER)
    app = ChatApp(open_engine_for, settings, surveyor_for, history, begun)
    was_left = Event()
    watch_terminal(was_left)
    try:
        app.run()
    finally:
        was_left.set()
        left = app.close_transfers()
        app.bridge.close()
        app.tabs.close()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    if app.fault:
        raise app.fault
    if app.return_code:
        raise SystemExit(app.return_code)
    return left

"""The one place where a door gets its engine."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localmoe.engine.request import EngineFace
    from localmoe.events import Event
    from localmoe.settings import Settings


def open_engine(
    settings: "Settings",
    on_event: "Callable[[Event], None]",
    cancelled: Callable[[], bool] = lambda: False,
) -> "EngineFace":
    """The engine for `settings.model`; reports Loading, and raises CancelledError soon after `cancelled()` is true."""
    from localmoe.engine.engine import Engine

    return Engine.open(settings.model, settings, on_event, cancelled=cancelled)

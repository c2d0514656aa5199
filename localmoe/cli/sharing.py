"""Which engine answers: one that another process has open, or one of this process, which a chat lends to others."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localmoe.chat.history.parameters import PARAMETERS
from localmoe.cli import opening
from localmoe.errors import RemoteError
from localmoe.events import Loading

if TYPE_CHECKING:
    from localmoe.engine.remote import RemoteEngine
    from localmoe.engine.request import EngineFace
    from localmoe.engine.serving import Serving
    from localmoe.events import Event
    from localmoe.settings import Settings

Listener = Callable[["Event"], None]
Cancelled = Callable[[], bool]
Say = Callable[[str], None]


def join_or_open(settings: "Settings", on_event: Listener, cancelled: Cancelled, say: Say) -> "EngineFace":
    """For one answer: an engine that runs, else one of its own. `say` hears which, unless it is its own as usual."""
    joined = _join(settings, on_event, cancelled, say) if settings.share else None
    return joined or opening.open_engine(settings, on_event, cancelled)


def join_or_lend(settings: "Settings", on_event: Listener) -> "EngineFace":
    """For a chat: an engine that runs, else one of its own, which others may use until it is closed."""
    if not settings.share:
        return opening.open_engine(settings, on_event)
    remarks: list[str] = []
    return _join(settings, on_event, lambda: False, remarks.append) or _lend(settings, on_event, remarks)


def _join(settings: "Settings", on_event: Listener, cancelled: Cancelled, say: Say) -> "RemoteEngine | None":
    from localmoe.engine.remote_folder import runtime_folder
    from localmoe.engine.remote_join import join
    from localmoe.engine.remote_model import open_model_of

    model = open_model_of(settings)
    try:
        folder = runtime_folder()
    except RemoteError as error:
        say(f"no running localmoe was looked for: {error.message}")
        return None
    engine = join(model, on_event, cancelled=cancelled, say=say, folder=folder)
    if engine:
        say(f"{engine.info.model} is open in another localmoe (process {engine.process}), which answers")
    return engine


def _lend(settings: "Settings", on_event: Listener, remarks: list[str]) -> "EngineFace":
    from localmoe.engine.serving import Lent

    serving = _offer(settings, remarks)

    def hear(event: "Event") -> None:
        if serving and isinstance(event, Loading):
            serving.opening(event)
        on_event(event)

    try:
        return Lent(opening.open_engine(_for_all(settings), hear), serving, remarks)
    except BaseException:
        if serving:
            serving.close()
        raise


def _offer(settings: "Settings", remarks: list[str]) -> "Serving | None":
    from localmoe.engine.remote_model import open_model_of
    from localmoe.engine.serving import Serving

    try:
        return Serving(open_model_of(settings))
    except RemoteError as error:
        remarks.append(f"not lent to other processes: {error.message}")
        return None


def _for_all(settings: "Settings") -> "Settings":
    """Without what each request brings with it: of others, it must not decide."""
    nothing: dict[str, Any] = dict.fromkeys(PARAMETERS)
    return replace(settings, **nothing)

"""Finding an engine of another process that has the wanted model open, and joining it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

from localmoe.engine.codec import decode_info
from localmoe.engine.remote import SILENT_S, RemoteEngine, error_of
from localmoe.engine.remote_folder import connect, offers, runtime_folder
from localmoe.engine.remote_model import OpenModel, decode_model
from localmoe.engine.remote_wire import MAX_GREETING_BYTES, Message, Wire, check_greeting, greeting
from localmoe.errors import CancelledError, RemoteError
from localmoe.events import Event, decode

GREETING_S = 2.0
LOOK_S = 0.1  # between looks at whether joining is to stop

Listener = Callable[[Event], None]
Cancelled = Callable[[], bool]
Say = Callable[[str], None]


def join(
    model: OpenModel,
    on_event: Listener,
    *,
    cancelled: Cancelled = lambda: False,
    say: Say = lambda text: None,
    folder: Path | None = None,
) -> RemoteEngine | None:
    """The engine of a process that has `model` open, or is about to; None: there is none.

    `say` hears why one that was found is not used. Raises RemoteError for one of another version of localmoe, and
    CancelledError soon after `cancelled()` is true.
    """
    for path in offers(folder or runtime_folder(), model.key):
        try:
            if engine := _join(path, model, on_event, cancelled, say):
                return engine
        except OSError as error:  # TimeoutError is one
            why = "does not answer" if isinstance(error, TimeoutError) else "has just ended"
            say(f"the localmoe that has {model.name} open {why}")
    return None


def _join(path: Path, model: OpenModel, on_event: Listener, cancelled: Cancelled, say: Say) -> RemoteEngine | None:
    connection = connect(path)
    if connection is None:
        return None
    wire, start_s = Wire(connection), monotonic()
    try:
        if not wire.is_same_user:
            raise RemoteError(f"{path} is another user's", "remove it, or open the model here with --no-share")
        running = _greet(wire)
        info = decode_info(_await_open(wire, on_event, cancelled))
        why_not = model.why_not(running, info)
    except _ClosedError:
        wire.end()
        return None  # opening failed there: here it may not, or says why
    except BaseException:
        wire.end()
        raise
    if why_not:
        wire.end()
        say(f"{model.name} is open in another localmoe (process {wire.peer[0]}), but {why_not}")
        return None
    return RemoteEngine(wire, replace(info, load_s=monotonic() - start_s), on_event)


class _ClosedError(Exception):
    """The other side has ended the connection."""


def _greet(wire: Wire) -> OpenModel:
    welcome = wire.receive(GREETING_S, MAX_GREETING_BYTES)
    if welcome is None:
        raise _ClosedError
    check_greeting(welcome)
    wire.send(greeting())
    return decode_model(welcome.get("model"))


def _await_open(wire: Wire, on_event: Listener, cancelled: Cancelled) -> Message:
    """What is open there, as soon as it is; tells how far that is."""
    heard_s = monotonic()
    while monotonic() - heard_s < SILENT_S:
        if cancelled():
            raise CancelledError("opening the model was interrupted.", "run the command again.")
        try:
            message = wire.receive(LOOK_S)
        except TimeoutError:
            continue
        heard_s = monotonic()
        match message:
            case None:
                raise _ClosedError
            case {"ready": dict(info)}:
                return info
            case {"opening": dict(progress)}:
                on_event(decode(progress))
            case {"leave": dict(error)}:
                raise error_of(error)
    raise TimeoutError

"""What belongs to a chat of the settings: chosen when it begins, in force whenever it goes on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from localmoe.chat.history.records import Chat
from localmoe.errors import UsageError
from localmoe.settings import RULES, Settings

PARAMETERS = ("temperature", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens", "think")


def chosen(settings: Settings) -> dict[str, Any]:
    """The parameters that `settings` do not leave to the model."""
    return {name: value for name in PARAMETERS if (value := getattr(settings, name)) is not None}


def settings_in(chat: Chat, settings: Settings) -> Settings:
    """`settings` for going on with `chat`: its model and parameters win, except over a flag."""
    own = {"model": chat.model, **chat.parameters} if chat.model else dict(chat.parameters)
    return replace(settings, **{name: value for name, value in own.items() if settings.origin(name) != "flag"})


def configured(chat: Chat, settings: Settings) -> Chat:
    """`chat` with the model and parameters of `settings`."""
    folder = Path(settings.model)
    return replace(
        chat, model=str(folder.resolve()) if folder.is_dir() else settings.model, parameters=chosen(settings)
    )


def checked(parameters: Any) -> dict[str, Any]:
    """`parameters` from a file; UsageError when a chat has no such parameter, or not with such a value."""
    if not isinstance(parameters, Mapping):
        raise UsageError(f"{parameters!r} are no parameters of a chat", "an object with their names is")
    for name, value in parameters.items():
        try:
            if name not in PARAMETERS or RULES[name].read(value) != value:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            known = ", ".join(PARAMETERS)
            raise UsageError(f"a chat has no parameter {name} = {value!r}", f"parameters are {known}") from None
    return dict(parameters)

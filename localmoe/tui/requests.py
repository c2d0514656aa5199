"""From what was said and what was chosen to a Request."""

from dataclasses import replace
from typing import TYPE_CHECKING

from localmoe.chat.message import Conversation
from localmoe.engine.request import EngineInfo, Request

if TYPE_CHECKING:
    from localmoe.settings import Settings

_SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty", "seed")


def request_for(conversation: Conversation, info: EngineInfo, settings: "Settings", session: str) -> Request:
    """The model's own sampling, with the user's choices over it."""
    chosen = {name: value for name in _SAMPLING if (value := getattr(settings, name)) is not None}
    sampling = replace(info.sampling, **chosen)
    return Request(conversation, sampling, settings.max_tokens, settings.think, session)

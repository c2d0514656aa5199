"""Requests as JSON-ready dicts, beside the events' codec, for engines in another process."""

from dataclasses import asdict
from typing import Any, TypeVar

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import Request, Sampling
from localmoe.errors import UsageError

T = TypeVar("T")
_ROLES = ("system", "user", "assistant")
_SAMPLING = {"temperature": float, "top_p": float, "min_p": float, "repetition_penalty": float, "seed": int}


def encode_request(request: Request) -> dict[str, Any]:
    """`request` as a dict of plain values; its messages are a list."""
    return {**asdict(request), "conversation": [asdict(m) for m in request.conversation.messages]}


def decode_request(data: dict[str, Any]) -> Request:
    """The request that `encode_request` made `data` of; UsageError names what is wrong.

    What is left out has its default.
    """
    known = {"conversation", "sampling", "max_tokens", "think", "session"}
    _refuse_unknown("request", data, known)
    values: dict[str, Any] = {"conversation": _conversation(_typed("conversation", data.get("conversation"), list))}
    if "sampling" in data:
        values["sampling"] = _sampling(_typed("sampling", data["sampling"], dict))
    for name, kind in (("max_tokens", int), ("think", bool), ("session", str)):
        if data.get(name) is not None:
            values[name] = _typed(name, data[name], kind)
    return Request(**values)


def _conversation(messages: list[Any]) -> Conversation:
    return Conversation(tuple(_message(_typed("message", m, dict)) for m in messages))


def _message(data: dict[str, Any]) -> Message:
    _refuse_unknown("message", data, {"role", "text", "reasoning"})
    role = _typed("role", data.get("role"), str)
    if role not in _ROLES:
        raise UsageError(f"unknown role {role!r}", "known: " + ", ".join(_ROLES))
    return Message(role, _typed("text", data.get("text"), str), _typed("reasoning", data.get("reasoning", ""), str))  # type: ignore[arg-type]


def _sampling(data: dict[str, Any]) -> Sampling:
    _refuse_unknown("sampling", data, set(_SAMPLING))
    return Sampling(**{k: _typed(k, v, _SAMPLING[k]) for k, v in data.items() if v is not None})  # type: ignore[arg-type]


def _typed(name: str, value: Any, kind: type[T]) -> T:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return kind(value)  # type: ignore[call-arg]
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise UsageError(f"{name} must be a {kind.__name__}, not {value!r}")
    return value


def _refuse_unknown(what: str, data: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(data) - known):
        raise UsageError(f"unknown field {unknown[0]!r} in the {what}", "known: " + ", ".join(sorted(known)))

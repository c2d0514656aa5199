"""Requests, and what runs, as JSON-ready dicts, beside the events' codec, for engines in another process."""

from dataclasses import asdict, fields
from typing import Any, TypeVar

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineInfo, Request, Sampling
from localmoe.errors import UsageError

T = TypeVar("T")
_ROLES = ("system", "user", "assistant")
_SAMPLING = {"temperature": float, "top_p": float, "min_p": float, "repetition_penalty": float, "seed": int}

_PLAIN: dict[str, type[Any]] = {
    "max_tokens": int,
    "think": bool,
    "session": str,
    "ttft_target_s": float,
    "tpot_target_ms": float,
}


def encode_request(request: Request) -> dict[str, Any]:
    """`request` as a dict of plain values; its messages are a list."""
    return {**asdict(request), "conversation": encode_conversation(request.conversation)}


def decode_request(data: dict[str, Any]) -> Request:
    """The request that `encode_request` made `data` of; UsageError names what is wrong.

    What is left out has its default.
    """
    known = {"conversation", "sampling", *_PLAIN}
    _refuse_unknown("request", data, known)
    values: dict[str, Any] = {"conversation": decode_conversation(data.get("conversation"))}
    if "sampling" in data:
        values["sampling"] = _sampling(_typed("sampling", data["sampling"], dict))
    for name, kind in _PLAIN.items():
        if data.get(name) is not None:
            values[name] = _typed(name, data[name], kind)
    return Request(**values)


def encode_conversation(conversation: Conversation) -> list[dict[str, Any]]:
    """`conversation` as the list of its messages."""
    return [asdict(message) for message in conversation.messages]


def decode_conversation(data: Any) -> Conversation:
    """The conversation that `encode_conversation` made `data` of; UsageError names what is wrong."""
    messages = _typed("conversation", data, list)
    return Conversation(tuple(_message(_typed("message", m, dict)) for m in messages))


def encode_info(info: EngineInfo) -> dict[str, Any]:
    """`info` as a dict of plain values."""
    return {field.name: getattr(info, field.name) for field in fields(info)} | {"sampling": asdict(info.sampling)}


def decode_info(data: dict[str, Any]) -> EngineInfo:
    """What `encode_info` made `data` of; UsageError names what is wrong."""
    known = {field.name: field.type for field in fields(EngineInfo)}
    _refuse_unknown("info", data, set(known))
    kinds: dict[Any, type] = {str: str, int: int, bool: bool, float: float}
    values: dict[str, Any] = {
        name: _typed(name, data.get(name), kinds[kind]) for name, kind in known.items() if kind in kinds
    }
    values["plan"] = tuple(_typed("plan", line, str) for line in _typed("plan", data.get("plan"), list))
    values["sampling"] = _sampling(_typed("sampling", data.get("sampling"), dict))
    return EngineInfo(**values, details=_typed("details", data.get("details"), dict))


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

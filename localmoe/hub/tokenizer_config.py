"""What stands beside tokenizer.json: names of special tokens and the chat template."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError
from localmoe.hub.json_file import fetch_hint, read_json, require_file, unreadable

MAX_TEMPLATE_BYTES = 1 << 20  # the longest that we know of, with tools, is 25 KB


@dataclass(frozen=True)
class TokenizerConfig:
    """The chat template and the texts of bos_token, eos_token and the like."""

    chat_template: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Reads tokenizer_config.json, special_tokens_map.json and chat_template.jinja, each of which may be missing."""
    path = folder / "tokenizer_config.json"
    config = _read_optional(path)
    names = _texts(_read_optional(folder / "special_tokens_map.json")) | _texts(config)
    template = _template_file(folder / "chat_template.jinja") or _template_of(config.get("chat_template"), path)
    return TokenizerConfig(template, names)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _texts(data: dict[str, Any]) -> dict[str, str]:
    """`{"bos_token": "<s>"}` and `{"bos_token": {"content": "<s>"}}` say the same."""
    values = {k: v.get("content") if isinstance(v, dict) else v for k, v in data.items() if k.endswith("_token")}
    return {k: v for k, v in values.items() if isinstance(v, str) and v}


def _template_of(value: Any, path: Path) -> str | None:
    if isinstance(value, list):  # several templates by name, of which a chat takes "default"
        named = (t for t in value if isinstance(t, dict) and t.get("name") == "default")
        value = next((t.get("template") for t in named), None)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise CheckpointError("tokenizer_config.json: chat_template is neither a text nor a list.", fetch_hint(path))
    return _bounded(value, path)


def _template_file(path: Path) -> str | None:
    if not path.exists():
        return None
    require_file(path)
    try:
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"{path.name} is larger than {MAX_TEMPLATE_BYTES:,} bytes.", fetch_hint(path))
        return path.read_text("utf-8") or None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path.name} is not UTF-8 text.", fetch_hint(path)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _bounded(template: str, path: Path) -> str:
    if len(template) > MAX_TEMPLATE_BYTES:
        raise CheckpointError(f"chat_template in {path.name} is longer than a template can be.", fetch_hint(path))
    return template

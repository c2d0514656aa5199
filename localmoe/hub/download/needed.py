"""Which files of a repository a model needs: its weights in one form, and the small files that say what it is."""

from collections.abc import Iterable

from localmoe.errors import CheckpointError
from localmoe.hub.checkpoint import INDEX, SINGLE
from localmoe.hub.download.listing import HubFile, Listing
from localmoe.hub.json_file import shown

CONFIG = "config.json"
SMALL = (
    CONFIG,
    "generation_config.json",
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tiktoken.model",
)


def needed_files(listing: Listing, shards: Iterable[str]) -> tuple[HubFile, ...]:
    """The small files, then the weights, each in the order of names; `shards`: those that the index names."""
    by_path = {file.path: file for file in listing.files}
    weights = sorted(set(shards)) if INDEX in by_path else [SINGLE]
    if missing := [path for path in weights if path not in by_path]:
        raise _without(listing, missing[0])
    return (*(by_path[path] for path in SMALL if path in by_path), *(by_path[path] for path in weights))


def require_config(listing: Listing) -> None:
    """CheckpointError for a repository that is no model of safetensors."""
    paths = {file.path for file in listing.files}
    if CONFIG not in paths or not paths & {INDEX, SINGLE}:
        raise _without(listing, CONFIG if CONFIG not in paths else INDEX)


def _without(listing: Listing, path: str) -> CheckpointError:
    gguf = any(file.path.lower().endswith(".gguf") for file in listing.files)
    return CheckpointError(
        f"{shown(listing.repository)} has no {shown(path)} on the hub.",
        "it holds GGUF, which is not read: choose the repository with the original weights."
        if gguf
        else "choose a repository with the original weights in safetensors; `localmoe models` lists what runs.",
    )
